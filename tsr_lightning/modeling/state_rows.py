"""Rows in which layers that carry a state from token to token compute packed sequences. Knows no tensor.

Packed tokens are a tree of prefixes. Attention sees each token's own past through a mask; a state has to be carried
along it. So the tree is cut at its branch points into rows, and a row takes up the state at the end of another one.
Rows whose end is needed have the exact length of others beside them, and all others are padded at their ends, where
nothing is read. A row that takes up a state has two tokens or more: for a single one mixers have code of another kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.modeling.rounding import Rounding
from tsr_lightning.modeling.segments import Segment

_LEAST = 8  # tokens: a shorter piece between branch points is computed again in each branch, in fewer and longer rows
_PADDED = Rounding(least=8, per_octave=4)
ROW_PADDING = 1.25  # the most that it adds to a row, whose length may be just beyond a power of two
NO_STATE = -1  # the start of a sequence


@dataclass(frozen=True)
class RowBatch:
    """R rows of L tokens, which all start sequences, or all take up a state."""

    tokens: NDArray[np.int64]  # [R, L] packed
    origins: tuple[int, ...]  # [R] numbers of the states that the rows take up; () at the start of sequences
    gives_states: bool  # the ends of its rows are the next R states; other rows may be padded


@dataclass(frozen=True)
class RowPlan:
    """Batches in their order, in which each takes up states that were given before."""

    batches: tuple[RowBatch, ...]
    outputs: NDArray[np.int64]  # [T] where among all rows' tokens, one after the other, each packed token is
    ends: Mapping[int, int]  # by packed token, the number of the state after it


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: NDArray[np.int64]
    origin: int  # a packed token, or minus 2 and less: a state from outside; NO_STATE
    level: int
    is_exact: bool


def plan_rows(segments: Sequence[Segment], origins: Sequence[int] = (), *, all_ends: bool = False) -> RowPlan:
    """Rows for segments that lie packed one after the other; their paths are packed tokens.

    Args:
        segments: each begins where its sequence does, or where a state of `origins` ends.
        origins: [segments] numbers of the states from outside that they take up, or NO_STATE.
        all_ends: whether the states at the ends of segments are needed.
    """
    origins = origins or [NO_STATE] * len(segments)
    outside = max(origins, default=NO_STATE) + 1
    rows: list[_Row] = []
    given: dict[int, int] = {}  # packed token with a state -> level of its row
    for path, origin, is_needed in _stops(segments, origins, all_ends):
        begin = _after_last(path[:-2], given)
        if int(path[-1]) not in given and (is_needed or len(path) - begin >= _LEAST):
            rows.append(_row(path, begin, origin, given, is_exact=True))
            given[int(path[-1])] = rows[-1].level
    for segment, origin in zip(segments, origins, strict=True):
        begin = _after_last(segment.path, given)
        if begin < len(segment.path):
            rows.append(_row(segment.path, begin, origin, given, is_exact=False))
    return _in_batches(rows, outside, sum(segment.length for segment in segments))


def _stops(
    segments: Sequence[Segment], origins: Sequence[int], all_ends: bool
) -> list[tuple[NDArray[np.int64], int, bool]]:
    """Paths to the branch points and the needed ends, in the order of their last tokens, with their sequences' origins
    and whether they are needed."""
    stops: dict[int, tuple[NDArray[np.int64], int, bool]] = {}
    for segment, origin in zip(segments, origins, strict=True):
        if segment.start:
            stops.setdefault(int(segment.path[segment.start - 1]), (segment.path[: segment.start], origin, False))
    for segment, origin in zip(segments, origins, strict=True) if all_ends else ():
        stops[int(segment.path[-1])] = (segment.path, origin, True)
    return [stops[token] for token in sorted(stops)]


def _after_last(path: NDArray[np.int64], given: Mapping[int, int]) -> int:
    """The place after the last token of a path that has a state."""
    found = np.flatnonzero(np.isin(path, list(given)))
    return int(found[-1]) + 1 if len(found) else 0


def _row(path: NDArray[np.int64], begin: int, origin: int, given: Mapping[int, int], *, is_exact: bool) -> _Row:
    if begin:
        before = int(path[begin - 1])
        return _Row(path[begin:], before, given[before] + 1, is_exact)
    return _Row(path, -2 - origin if origin != NO_STATE else NO_STATE, 0, is_exact)


def _in_batches(rows: Sequence[_Row], outside: int, count: int) -> RowPlan:
    groups: dict[tuple[int, bool, int, bool], list[_Row]] = {}
    for row in rows:
        length = len(row.tokens) if row.is_exact else _PADDED.up(len(row.tokens))
        groups.setdefault((row.level, not row.is_exact, length, row.origin == NO_STATE), []).append(row)
    batches: list[RowBatch] = []
    outputs, place = np.full(count, -1, dtype=np.int64), 0
    ends: dict[int, int] = {}
    for (_, is_padded, length, is_start), group in sorted(groups.items(), key=lambda item: item[0]):
        tokens = np.empty((len(group), length), dtype=np.int64)
        for i, row in enumerate(group):
            tokens[i, : len(row.tokens)] = row.tokens
            tokens[i, len(row.tokens) :] = row.tokens[-1]
            own = outputs[row.tokens] < 0  # the first of several rows that compute a token
            outputs[row.tokens[own]] = place + i * length + np.flatnonzero(own)
        origins = () if is_start else tuple(-2 - r.origin if r.origin < NO_STATE else ends[r.origin] for r in group)
        batches.append(RowBatch(tokens, origins, not is_padded))
        place += tokens.size
        if not is_padded:
            for row in group:
                ends[int(row.tokens[-1])] = outside + len(ends)
    return RowPlan(tuple(batches), outputs, ends)
