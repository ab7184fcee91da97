"""Masks of a tree of prefixes, for kernels that take one mask for all packed tokens. Knows arrays, and no tensor.

Keys are the nodes of a forest: a key's path is the prefix that it ends. In a depth-first numbering the keys below a key
are an interval, so a query sees a key if its own key's number is in that key's interval: two comparisons, whatever the
tree. Blocks of the mask in which nothing is seen are not computed; those in which all is seen need no mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.modeling.rounding import Rounding
from tsr_lightning.modeling.segments import Segment

BLOCK = 128  # queries and keys of a block: what flex_attention prefers
_LENGTHS = Rounding(least=BLOCK, per_octave=16)


@dataclass(frozen=True)
class TreeMask:
    """Q queries over K keys in depth-first order."""

    keys: NDArray[np.int64]  # [K] where each number's key is stored
    ends: NDArray[np.int64]  # [K] the number after the last key below each
    depths: NDArray[np.int64]  # [K] keys before each on its path
    nodes: NDArray[np.int64]  # [Q] the number of each query's own key

    def visible(self, window: int | None) -> NDArray[np.bool_]:
        """[Q, K] what the blocks hold, all at once: for tests and small batches."""
        nodes, keys = self.nodes[:, None], np.arange(len(self.keys))
        seen = (keys <= nodes) & (nodes < self.ends)
        return seen if window is None else seen & (self.depths[nodes] - self.depths < window)


@dataclass(frozen=True)
class Blocks:
    """Blocks of a mask, padded to whole ones: for each of B blocks of queries the blocks of keys in ascending order."""

    partial_counts: NDArray[np.int32]  # [B]
    partial: NDArray[np.int32]  # [B, C] the first of each row; the others follow, and are not computed
    full_counts: NDArray[np.int32]  # [B]
    full: NDArray[np.int32]  # [B, C]

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, hidden ones included."""
        return int(self.partial_counts.sum() + self.full_counts.sum()) * BLOCK**2


def padded_length(count: int) -> int:
    """The next of few lengths, a multiple of `BLOCK` and at least two of them: dimensions of 1 are compiled anew."""
    return _LENGTHS.up(max(2 * BLOCK, count))


def tree_mask(segments: Sequence[Segment]) -> TreeMask:
    """For queries that lie packed one after the other; a path says where keys are stored."""
    order = sorted(range(len(segments)), key=lambda i: segments[i].path.astype(">i8").tobytes())
    keys: list[NDArray[np.int64]] = []
    depths: list[NDArray[np.int64]] = []
    ends = np.zeros(sum(len(segment.path) for segment in segments), dtype=np.int64)
    nodes: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * len(segments)
    before = numbers = np.empty(0, dtype=np.int64)  # the path before this one, and its keys' numbers
    total = 0
    for i in order:
        path = segments[i].path
        shared = _common(before, path)
        ends[numbers[shared:]] = total
        added = len(path) - shared
        numbers = np.concatenate([numbers[:shared], np.arange(total, total + added)])
        keys.append(path[shared:])
        depths.append(np.arange(shared, len(path)))
        nodes[i] = numbers[segments[i].start :]
        total += added
        before = path
    ends[numbers] = total
    return TreeMask(np.concatenate(keys), ends[:total], np.concatenate(depths), np.concatenate(nodes))


def blocks(mask: TreeMask, segments: Sequence[Segment], window: int | None = None) -> Blocks:
    """The blocks of `tree_mask(segments)` under a sliding window or none, without the mask itself."""
    queries, keys = padded_length(len(mask.nodes)) // BLOCK, padded_length(len(mask.keys)) // BLOCK
    seen = np.zeros((queries, keys), dtype=np.int64)  # pairs in each block
    number = np.empty(int(mask.keys.max()) + 1, dtype=np.int64)
    number[mask.keys] = np.arange(len(mask.keys))
    first = 0  # query of the segment
    for segment in segments:
        for begin, end in _pieces(first, first + segment.length):
            start = segment.start + begin - first  # keys before the piece's first query
            rows = end - begin
            stop = start + rows
            lowest = 0 if window is None else max(0, start - window + 1)
            places = np.arange(lowest, stop)
            until = rows - 1 if window is None else np.minimum(rows - 1, places - start + window - 1)
            pairs = until - np.maximum(0, places - start) + 1
            seen[begin // BLOCK] += np.bincount(number[segment.path[lowest:stop]] // BLOCK, pairs, keys).astype(
                np.int64
            )
        first += segment.length
    seen[first // BLOCK :, 0] += 1  # padded queries see key 0: a query that sees nothing has no softmax
    full = seen >= BLOCK**2
    partial = (seen > 0) & ~full
    return Blocks(_counts(partial), _ordered(partial), _counts(full), _ordered(full))


def _pieces(begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of a range of queries that are in one block each."""
    bounds = [begin, *range((begin // BLOCK + 1) * BLOCK, end, BLOCK), end]
    return list(pairwise(bounds))


def _counts(chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
    return chosen.sum(axis=1).astype(np.int32)


def _ordered(chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Orders the columns of each row: the chosen ones first, both parts ascending."""
    return np.argsort(~chosen, axis=1, kind="stable").astype(np.int32)


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Counts the leading places that two paths share."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
