"""A catalogue and a search over it, and the products that a query lists. Knows no page and no goal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.product import Product

MAX_RESULTS = 50  # of a search

# First words of queries that are no search: a random listing, and all products of an attribute, category or query
RANDOM, BY_ATTRIBUTE, BY_CATEGORY, BY_QUERY = "<r>", "<a>", "<c>", "<q>"


@dataclass(frozen=True, eq=False)
class Shop:
    """Products and their search. Compared by identity, so that listings and pages can be cached per shop."""

    catalogue: Catalogue
    search: Callable[[str], Sequence[int]]  # words -> places in the catalogue, best first; the first 50 are shown
    shows_attributes: bool = False  # whether the attributes, which are mined from reviews, have a page

    def product(self, place: int) -> Product:
        return self.catalogue.products[place]


@lru_cache(maxsize=4096)
def listing(shop: Shop, keywords: tuple[str, ...], draw: int = 0) -> tuple[int, ...]:
    """Places in the catalogue that a query lists, in the order shown.

    As in the original, category, attribute and query are compared exactly and list all matches, and a category is one
    word. The original crashes on `<a>`, as it never loads the attributes, on `<c>` alone, and on `<r>` with fewer than
    50 products; here these work.

    Args:
        shop: whose products are listed.
        keywords: the query, split at single spaces; never empty.
        draw: seed of a random listing.
    """
    head, rest = keywords[0], " ".join(keywords[1:]).strip()
    products = shop.catalogue.products
    if head == RANDOM:
        key = Key(draw).fold_in("listing")
        return tuple(sorted(range(len(products)), key=key.uniform)[:MAX_RESULTS])
    if head == BY_ATTRIBUTE:
        return tuple(place for place, product in enumerate(products) if rest in product.attributes)
    if head == BY_CATEGORY:
        category = keywords[1].strip() if len(keywords) > 1 else ""
        return tuple(place for place, product in enumerate(products) if product.category == category)
    if head == BY_QUERY:
        return tuple(place for place, product in enumerate(products) if product.query == rest)
    return tuple(shop.search(" ".join(keywords))[:MAX_RESULTS])
