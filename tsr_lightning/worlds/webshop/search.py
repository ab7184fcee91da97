"""Search over a catalogue: the indexed text of a product, and the products that a query finds."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tsr_lightning.worlds.webshop.bm25 import Index, build_index
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.product import Product
from tsr_lightning.worlds.webshop.shop import MAX_RESULTS

CACHED_QUERIES: Final = 4096


def indexed_text(product: Product) -> str:
    """The text that the original indexes: title, description, the first feature and the options, in lower case."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


class Search:
    """The places of the products that a query finds, best first, as Anserini's Lucene ranks them.

    Args:
        products: in the order of their places.
    """

    def __init__(self, products: Iterable[Product]) -> None:
        self.index: Index = build_index(map(indexed_text, products))
        self._cached = lru_cache(CACHED_QUERIES)(self.find)

    def __call__(self, query: str) -> tuple[int, ...]:
        return self._cached(query)

    def find(self, query: str) -> tuple[int, ...]:
        """The answer to a query, without the cache."""
        best, _ = self.index.top(query, MAX_RESULTS)
        return tuple(best.tolist())


@lru_cache(maxsize=2)
def search_over(catalogue: Catalogue) -> Search:
    """The search of a catalogue; its index is built once per process."""
    return Search(catalogue.products)
