"""Prompts as a tree: which of them share which keys. Knows no tensor but arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Node:
    """Slots on the paths of consecutive prompts, and of no others."""

    first: int  # of the prompts that were asked about
    end: int
    start: int  # depth
    stop: int


class PromptTree:
    """Prompts in lexicographic order of their slots, in which those that share a beginning are side by side.

    Args:
        prompts: [G] slots of each; a slot has one path.
    """

    def __init__(self, prompts: Sequence[NDArray[np.int64]]) -> None:
        order = sorted(range(len(prompts)), key=lambda i: prompts[i].astype(">i8").tobytes())
        self._slots = [prompts[i] for i in order]
        self._common = [_common(*pair) for pair in pairwise(self._slots)]
        self.rank = np.empty(len(prompts), dtype=np.int64)  # [G] of each prompt in the order
        self.rank[order] = np.arange(len(prompts))

    def path(self, rank: int) -> NDArray[np.int64]:
        """Slots of a prompt."""
        return self._slots[rank]

    def common(self, ranks: Sequence[int]) -> list[int]:
        """Counts the slots that each of these prompts, ascending, shares with the next."""
        return [min(self._common[one:other]) for one, other in pairwise(ranks)]

    def nodes(self, ranks: Sequence[int]) -> Iterator[Node]:
        """The tree of these prompts, ascending: the intervals of their common lengths (Abouelhoda et al. 2004)."""
        opened: list[tuple[int, int]] = []  # where nodes begin that go on: depth and first prompt
        depth = 0
        for i, (rank, shared) in enumerate(zip(ranks, [*self.common(ranks), 0], strict=True)):
            if len(self._slots[rank]) > depth:
                opened.append((depth, i))
                depth = len(self._slots[rank])
            while depth > shared:
                start, first = opened.pop()
                yield Node(first, i + 1, max(start, shared), depth)
                depth = max(start, shared)
                if start < shared:
                    opened.append((start, first))


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Counts the leading slots that two paths share."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
