"""The trie of cached prefixes: which tokens have keys and values, where, and which are evicted. Knows no tensor.

A slot holds one token's keys and values, and so stands for the prefix that ends with that token. Sequences with a
common prefix share its slots, so nothing is computed twice. When slots run out, the least recently used prefixes are
evicted, and never one that a cached prefix extends: branches that search has pruned go before those that live.

Branches grow side by side, and yet a branch's tokens lie side by side, as in the pages of vLLM (arXiv 2309.06180):
memory that is read in order is read several times as fast. A page is no unit of sharing, and none is held back: when no
page is free, any slot is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROOT = -1  # before the first token
PAGE = 16  # slots
_TOKENS = 2**32  # more than any vocabulary has


@dataclass(frozen=True, slots=True)
class CachedSequence:
    """A sequence in the trie."""

    slots: NDArray[np.int64]  # [L] of its prefixes, shortest first
    cached: int  # prefixes that were there before; the other slots hold nothing yet


class Trie:
    """Slots by the tokens that lead to them.

    Args:
        capacity: the number of slots.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._child: dict[int, int] = {}  # (slot, token) as one number -> slot
        # Slots that were never used are not touched: a store of millions costs what is used of it.
        self._parent = np.empty(capacity, dtype=np.int64)
        self._token = np.empty(capacity, dtype=np.int64)
        self._depth = np.empty(capacity, dtype=np.int64)
        self._used_at = np.zeros(capacity, dtype=np.int64)  # 0 for a free slot
        self._in_page = bytearray(-(-capacity // PAGE))  # how many slots of each page are not free
        self._free_pages: list[int] = []  # that were used before
        self._free_slots: list[int] = []  # of other pages; some may have been taken since
        self._unused = 0  # slots from here on, whole pages, have not been used since `clear`
        self._free = capacity
        self._now = 1

    def clear(self) -> None:
        """Empties the trie: other weights give other keys."""
        self._child.clear()
        self._used_at[: self._unused] = 0
        self._in_page = bytearray(len(self._in_page))
        self._free_pages.clear()
        self._free_slots.clear()
        self._unused = 0  # the same slots first each time: their memory is warm
        self._free = self.capacity

    @property
    def used(self) -> int:
        """Slots that have been used since `clear`, whether or not they are free again."""
        return self._unused

    def begin(self) -> None:
        """Prefixes used from here on are not evicted before the next `begin`."""
        self._now += 1

    def reserve(self, count: int) -> list[int]:
        """Makes `count` slots free by evicting what was not used since `begin`; returns the slots evicted.

        Least recently used first; of equal age the longest first, so that a prefix outlives its extensions: it is used
        whenever they are.
        """
        missing = count - self._free
        if missing <= 0:
            return []
        used_at = self._used_at[: self._unused]
        idle = np.flatnonzero((used_at > 0) & (used_at < self._now))
        if len(idle) < missing:
            raise RuntimeError(f"{count} slots are needed, and {missing - len(idle)} of them cannot be freed")
        order = np.lexsort((-self._depth[idle], self._used_at[idle]))
        evicted: list[int] = idle[order[:missing]].tolist()
        for slot in evicted:
            del self._child[(int(self._parent[slot]) + 1) * _TOKENS + int(self._token[slot])]
            self._used_at[slot] = 0
            page = slot // PAGE
            self._in_page[page] -= 1
            if not self._in_page[page]:
                self._free_pages.append(page)
        self._free += missing
        return evicted

    def find(self, slot: int, token: int) -> int | None:
        """The slot of a prefix and one more token, if it is cached."""
        return self._child.get((slot + 1) * _TOKENS + token)

    def touch(self, slot: int) -> None:
        """Marks a prefix as used, whose own prefixes are."""
        self._used_at[slot] = self._now

    def match_prefix(self, ids: Sequence[int]) -> list[int]:
        """The slots of the longest cached prefix, which is marked as used."""
        slots: list[int] = []
        self._follow(ids, slots)
        self._used_at[slots] = self._now
        return slots

    def insert(self, ids: Sequence[int], matched: list[int]) -> CachedSequence:
        """Slots of a whole sequence, given what `match_prefix` returned; room for the rest has been reserved."""
        slots = list(matched)
        self._follow(ids, slots)
        cached = len(slots)
        slot = slots[-1] if slots else ROOT
        for depth in range(cached, len(ids)):
            slot = self.add(slot, ids[depth], depth)
            slots.append(slot)
        return CachedSequence(np.array(slots, dtype=np.int64), cached)

    def _follow(self, ids: Sequence[int], slots: list[int]) -> None:
        slot, child = slots[-1] if slots else ROOT, self._child
        for token in ids[len(slots) :]:
            found = child.get((slot + 1) * _TOKENS + token)
            if found is None:
                return
            slots.append(found)
            slot = found

    def add(self, slot: int, token: int, depth: int) -> int:
        """A slot for a prefix and one more token; `depth` is the prefix's length."""
        new = self._free_slot(slot + 1)
        self._in_page[new // PAGE] += 1
        self._free -= 1
        self._child[(slot + 1) * _TOKENS + token] = new
        self._parent[new], self._token[new], self._depth[new], self._used_at[new] = slot, token, depth, self._now
        return new

    def _free_slot(self, preferred: int) -> int:
        """The preferred slot where it is free and no page begins with it, else the first of a free page, else any."""
        if preferred % PAGE and preferred < self.capacity and not self._used_at[preferred]:
            return preferred
        if self._free_pages:
            return self._free_pages.pop() * PAGE
        if self._unused < self.capacity:
            first = self._unused
            self._unused = min(first + PAGE, self.capacity)
            return first
        while True:
            if not self._free_slots:
                self._free_slots = np.flatnonzero(self._used_at == 0)[::-1].tolist()
            slot = self._free_slots.pop()
            if not self._used_at[slot]:
                return slot

    def parent(self, slot: int) -> int:
        """The slot of the prefix without its last token."""
        return int(self._parent[slot])

    def path(self, slot: int) -> NDArray[np.int64]:
        """The slots of a prefix's own prefixes, shortest first, its own last."""
        path = np.empty(self._depth[slot] + 1, dtype=np.int64)
        for depth in range(len(path) - 1, -1, -1):
            path[depth], slot = slot, self.parent(slot)
        return path
