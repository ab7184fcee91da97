"""Sharing items out to the ranks of a run: what rollouts ask of the processes they run in."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

ItemT = TypeVar("ItemT")


class Ranks(Protocol):
    """This process among those of a run. `gather` is called on every rank."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def gather(self, own: Sequence[ItemT], shares: Sequence[Sequence[int]] | None = None) -> list[ItemT]:
        """The items of all ranks in their order.

        Args:
            own: of this rank.
            shares: of every rank, the indices of its items; every `world_size`-th from its rank on if not given.
        """
        ...


class SingleProcess:
    """A run of one process, which has every item already."""

    rank = 0
    world_size = 1

    def gather(self, own: Sequence[ItemT], shares: Sequence[Sequence[int]] | None = None) -> list[ItemT]:
        return list(own)


def shares_by_kind(kinds: Sequence[int], parts: int) -> list[list[int]]:
    """Shares items out such that each part has about as many of each kind: their indices, in ascending order."""
    order = sorted(range(len(kinds)), key=kinds.__getitem__)
    return [sorted(order[part::parts]) for part in range(parts)]
