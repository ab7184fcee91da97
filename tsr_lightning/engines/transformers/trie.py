"""The trie of prefixes: which tokens' keys and values are kept, where, and which may go. Knows no tensor.

A slot is a place for one token's keys and values, and so for the prefix that ends in it. Two rows with a common prefix
share its slots, so whatever has a slot was computed once. When slots run out, the prefixes that were used longest ago
go first, and never one that another still extends: branches that search has pruned, therefore, before any that live.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROOT = -1  # before the first token
_TOKENS = 2**32  # more than any vocabulary has


@dataclass(frozen=True, slots=True)
class Place:
    """A row of tokens in the trie."""

    slots: NDArray[np.int64]  # [L] of each of its prefixes, shortest first
    known: int  # how many of them were there already; the others are new and hold nothing yet


class Trie:
    """Slots by the tokens that lead to them.

    Args:
        capacity: how many slots there are.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._child: dict[int, int] = {}  # (slot, token) as one number -> slot
        # Of a slot that was never used nothing is read or written: a store of millions costs what is used of it.
        self._parent = np.empty(capacity, dtype=np.int64)
        self._token = np.empty(capacity, dtype=np.int64)
        self._depth = np.empty(capacity, dtype=np.int64)
        self._used = np.zeros(capacity, dtype=np.int64)  # when; 0 for a free slot
        self._freed: list[int] = []
        self._fresh = 0  # slots from here on are free and were not used since `clear`
        self._now = 1

    def clear(self) -> None:
        """Forgets everything: other weights give other keys."""
        self._child.clear()
        self._used[: self._fresh] = 0
        self._freed.clear()
        self._fresh = 0  # the same slots first each time: their memory is warm

    def begin(self) -> None:
        """From here on, what is used is not given up before the next `begin`."""
        self._now += 1

    def reserve(self, count: int) -> bool:
        """Makes `count` slots free by giving up what was not used since `begin`; whether that was possible."""
        if self._free < count:
            self._give_up(count - self._free)
        return self._free >= count

    @property
    def _free(self) -> int:
        return len(self._freed) + self.capacity - self._fresh

    def find(self, slot: int, token: int) -> int | None:
        """The slot of a prefix and one more token, where there is one."""
        return self._child.get((slot + 1) * _TOKENS + token)

    def touch(self, slot: int) -> None:
        """Uses a prefix whose every beginning is in use."""
        self._used[slot] = self._now

    def known(self, ids: Sequence[int]) -> list[int]:
        """The slots of the longest known prefix, now in use."""
        slots: list[int] = []
        self._follow(ids, slots)
        self._used[slots] = self._now
        return slots

    def place(self, ids: Sequence[int], known: list[int]) -> Place:
        """Slots for a whole row, from what `known` told of it; room for the rest has been reserved."""
        slots = list(known)
        self._follow(ids, slots)
        there = len(slots)
        slot = slots[-1] if slots else ROOT
        for depth in range(there, len(ids)):
            slot = self.add(slot, ids[depth], depth)
            slots.append(slot)
        return Place(np.array(slots, dtype=np.int64), there)

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
        if self._freed:
            new = self._freed.pop()
        else:
            new, self._fresh = self._fresh, self._fresh + 1
        self._child[(slot + 1) * _TOKENS + token] = new
        self._parent[new], self._token[new], self._depth[new], self._used[new] = slot, token, depth, self._now
        return new

    def parent(self, slot: int) -> int:
        """Of the prefix that is one token shorter."""
        return int(self._parent[slot])

    def path(self, slot: int) -> NDArray[np.int64]:
        """The slots of all beginnings of a prefix, shortest first, its own last."""
        path = np.empty(self._depth[slot] + 1, dtype=np.int64)
        for depth in range(len(path) - 1, -1, -1):
            path[depth], slot = slot, self.parent(slot)
        return path

    def _give_up(self, count: int) -> None:
        """Oldest first; of equal age the longest, so that nothing goes before what extends it (a prefix is used
        whenever its extension is)."""
        used = self._used[: self._fresh]
        idle = np.flatnonzero((used > 0) & (used < self._now))
        order = np.lexsort((-self._depth[idle], self._used[idle]))
        for slot in idle[order[:count]].tolist():
            del self._child[(int(self._parent[slot]) + 1) * _TOKENS + int(self._token[slot])]
            self._used[slot] = 0
            self._freed.append(slot)
