"""A catalogue, and sequences that keep many records in little memory. Knows no file."""

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, overload

from tsr_lightning.worlds.webshop.product import GoalTemplate, Product

T = TypeVar("T")
CACHED = 8192  # unpacked records; the published sample of 1000 products fits


class PackedRecords(Sequence[T], Generic[T]):
    """A sequence of records, each kept as the bytes of its fields and unpacked on access.

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
        self._at = lru_cache(CACHED)(self._unpacked)
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
        """All records, without the cache, which keeps those in use."""
        return map(self._unpacked, range(len(self)))

    def _unpacked(self, place: int) -> T:
        return self._make(*marshal.loads(memoryview(self._bytes)[self._ends[place] : self._ends[place + 1]]))


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The products of a shop and the instructions for them. Compared by identity: caches keep its index and goals."""

    products: Sequence[Product]  # [N], all of different asin
    templates: Sequence[GoalTemplate] = ()  # synthetic, at most one per product, in the order of the products
    human_templates: Sequence[GoalTemplate] = ()  # written by people, in the order of the products

    def __len__(self) -> int:
        return len(self.products)
