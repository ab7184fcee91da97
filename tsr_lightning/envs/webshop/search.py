"""Search over a catalogue: which text of a product is indexed, and which products a query lists."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tsr_lightning.envs.webshop.bm25 import Index, build_index
from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.product import Product

LISTED: Final = 50  # products that a search finds at most
REMEMBERED: Final = 4096  # queries of which the answer is kept


def indexed_text(product: Product) -> str:
    """What the original indexes: title, description, the first feature and the options, in lower case."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


class Search:
    """The places of the products that a query finds, best first, as Anserini's Lucene lists them.

    Args:
        products: in the order of their places.
    """

    def __init__(self, products: Iterable[Product]) -> None:
        self.index: Index = build_index(map(indexed_text, products))
        self._found = lru_cache(REMEMBERED)(self._find)

    def __call__(self, query: str) -> tuple[int, ...]:
        return self._found(query)

    def _find(self, query: str) -> tuple[int, ...]:
        best, _ = self.index.top(query, LISTED)
        return tuple(best.tolist())


@lru_cache(maxsize=2)
def search_over(catalogue: Catalogue) -> Search:
    """The search of a catalogue; its index is built once in a process."""
    return Search(catalogue.products)
