"""Many records in little memory, and the catalogue that is made of them. Knows no file."""

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.envs.webshop.product import Product, Wish

T = TypeVar("T")
KEPT = 8192  # records that stay unpacked; the published sample of 1000 products fits


class Packed(Sequence[T], Generic[T]):
    """A sequence of records whose fields lie as bytes, one after another, until they are asked for.

    A million products as Python objects would take about three times the memory. marshal keeps every str, float and
    tuple exactly; its bytes never leave the process.

    Args:
        make: builds a record from its fields.
        records: the fields of each record.
    """

    def __init__(self, make: Callable[..., T], records: Iterable[tuple[Any, ...]] = ()) -> None:
        self._make = make
        self._bytes = bytearray()
        self._ends = array("Q", [0])  # record i lies at [ends[i], ends[i + 1])
        self._at = lru_cache(KEPT)(self._unpacked)
        for fields in records:
            self.append(fields)

    def append(self, fields: tuple[Any, ...]) -> None:
        self._bytes += marshal.dumps(fields)
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"{index} of {len(self)} records")
        return self._at(place)

    def __iter__(self) -> Iterator[T]:
        """All records, without pushing those in use out of the cache."""
        return map(self._unpacked, range(len(self)))

    @property
    def nbytes(self) -> int:
        return len(self._bytes) + self._ends.itemsize * len(self._ends)

    def _unpacked(self, place: int) -> T:
        return self._make(*marshal.loads(memoryview(self._bytes)[self._ends[place] : self._ends[place + 1]]))


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What a shop has, and what its customers ask for. Compared by identity, so that an index can be kept with it."""

    products: Sequence[Product]  # [N], all of different asin
    wishes: Sequence[Wish] = ()  # synthetic ones, at most one per product, in the order of the products
    human: Sequence[Wish] = ()  # those that people wrote, in the order of the products

    def __len__(self) -> int:
        return len(self.products)

    def place(self, asin: str) -> int | None:
        """Where the product with this asin stands, or None where there is none."""
        asins, order = self._by_asin
        wanted = np.array(asin.encode("utf-8", "replace"))
        rank = int(np.searchsorted(asins, wanted, sorter=order))
        if rank == len(order) or asins[order[rank]] != wanted:
            return None
        return int(order[rank])

    def product(self, asin: str) -> Product:
        place = self.place(asin)
        if place is None:
            raise KeyError(asin)
        return self.products[place]

    @cached_property
    def _by_asin(self) -> tuple[NDArray[np.bytes_], NDArray[np.int32]]:
        """The asins [N] and the places in their order [N]: 14 bytes a product where a dict takes 200."""
        asins = np.array([product.asin.encode() for product in self.products], dtype=np.bytes_)
        return asins, np.argsort(asins, kind="stable").astype(np.int32)
