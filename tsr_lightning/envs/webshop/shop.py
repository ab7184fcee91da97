"""A catalogue and a search over it: what a query lists. Knows no page and no goal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.product import Product
from tsr_lightning.rng import Key

MOST = 50  # results of a search

# Words at the head of a query that are no search: a random listing, and all articles of an attribute, category or query
RANDOM, BY_ATTRIBUTE, BY_CATEGORY, BY_QUERY = "<r>", "<a>", "<c>", "<q>"


@dataclass(frozen=True, eq=False)
class Shop:
    """Articles, and how they are found. Compared by identity, so that what it lists can be remembered with it."""

    catalogue: Catalogue
    search: Callable[[str], Sequence[int]]  # words -> places in the catalogue, the best first; the first 50 are shown
    shows_attributes: bool = False  # whether the attributes, which are mined from reviews, have a page

    def product(self, place: int) -> Product:
        return self.catalogue.products[place]


@lru_cache(maxsize=4096)
def listing(shop: Shop, keywords: tuple[str, ...], draw: int = 0) -> tuple[int, ...]:
    """Places in the catalogue that a query lists, in the order shown.

    As in the original, category, attribute and query are compared exactly, list more than 50 where there are more, and
    a category is one word. The original never gets the attributes and dies of `<a>`, of `<c>` alone, and of `<r>` where
    there are fewer than 50 articles.

    Args:
        shop: where.
        keywords: the query, split at single spaces; never empty.
        draw: names the sample of a random listing.
    """
    head, rest = keywords[0], " ".join(keywords[1:]).strip()
    products = shop.catalogue.products
    if head == RANDOM:
        key = Key(draw).fold_in("listing")
        return tuple(sorted(range(len(products)), key=key.uniform)[:MOST])
    if head == BY_ATTRIBUTE:
        return tuple(place for place, product in enumerate(products) if rest in product.attributes)
    if head == BY_CATEGORY:
        category = keywords[1].strip() if len(keywords) > 1 else ""
        return tuple(place for place, product in enumerate(products) if product.category == category)
    if head == BY_QUERY:
        return tuple(place for place, product in enumerate(products) if product.query == rest)
    return tuple(shop.search(" ".join(keywords))[:MOST])
