"""Packed segments as the C kernel takes them: blocks of packed tokens, and the stored keys of each.

Knows no tensor but arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.modeling.segments import Segment

MAX_TOKENS = 64  # of a block: a mask has so many bits
_LANES = 8  # queries are computed by so many
_READ_COST = 8  # reading a block's keys costs as much as so many queries
_BITS = np.left_shift(np.uint64(1), np.arange(MAX_TOKENS, dtype=np.uint64))


@dataclass(frozen=True)
class Blocks:
    """Packed tokens in blocks, as `block` in attention.c; all in packed order."""

    table: NDArray[np.int64]  # [B, 6]: token, tokens, shared, shared_count, own, own_count
    shared: NDArray[np.int64]  # slots of keys that all tokens of a block see
    own: NDArray[np.int64]  # slots of further keys
    masks: NDArray[np.uint64]  # beside `own`: which of the block's tokens see the key, as bits

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, hidden ones included."""
        _, tokens, _, shared, _, own = self.table.T
        return int((tokens * (shared + own)).sum())


class BlockPlan:
    """Blocks of packed segments, built once per sliding window."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._longest = max(len(segment.path) for segment in segments)
        self._blocks: dict[int | None, Blocks] = {}

    def blocks(self, window: int | None) -> Blocks:
        window = None if window is None or window >= self._longest else window
        if window not in self._blocks:
            self._blocks[window] = segment_blocks(self._segments, window)
        return self._blocks[window]


# -- segments ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece(Segment):
    """Tokens of one segment that are in one block; the path ends with the last of them."""

    common: int  # keys that the path shares with the piece before it; 0 in a block's first


def segment_blocks(segments: Sequence[Segment], window: int | None = None) -> Blocks:
    """Blocks for segments that lie packed one after the other, under a sliding window or none."""
    groups = list(_grouped(segments))
    shared, own, masks = zip(*(_block_keys(pieces, window) for pieces in groups), strict=True)
    tokens = np.array([sum(piece.length for piece in pieces) for pieces in groups], dtype=np.int64)
    shared_counts, own_counts = (np.array(list(map(len, slots)), dtype=np.int64) for slots in (shared, own))
    columns = [_firsts(tokens), tokens, _firsts(shared_counts), shared_counts, _firsts(own_counts), own_counts]
    return Blocks(np.stack(columns, axis=1), np.concatenate(shared), np.concatenate(own), np.concatenate(masks))


def _grouped(segments: Sequence[Segment]) -> Iterator[list[_Piece]]:
    """Pieces of segments, by block: a segment's last piece shares a block with later segments if that costs less."""
    pieces: list[_Piece] = []
    tokens = keys = 0
    for segment in segments:
        begin, end = segment.start, len(segment.path)
        while begin < end:
            length = _piece_length(end - begin)
            path = segment.path[: begin + length]
            common = _common(pieces[-1].path, path) if pieces else 0
            together = _cost(tokens + length, keys + len(path) - common)
            if pieces and (tokens + length > MAX_TOKENS or together > _cost(tokens, keys) + _cost(length, len(path))):
                yield pieces
                pieces, tokens, keys, common = [], 0, 0, 0
            pieces.append(_Piece(length, path, common))
            tokens, keys, begin = tokens + length, keys + len(path) - common, begin + length
    yield pieces


def _piece_length(tokens: int) -> int:
    """Length of the first of about equal pieces, in whole lanes: a small rest would read all keys for a few queries."""
    parts = -(-tokens // MAX_TOKENS)
    return min(-(-tokens // (parts * _LANES)) * _LANES, tokens)


def _cost(tokens: int, keys: int) -> int:
    return (-(-tokens // _LANES) * _LANES + _READ_COST) * keys


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Counts the leading slots that two paths share."""
    length = min(len(one), len(other))
    if one[length - 1] == other[length - 1]:  # a slot has one path
        return length
    return int((one[:length] != other[:length]).argmax())


def _block_keys(
    pieces: Sequence[_Piece], window: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Shared slots, own slots and their masks."""
    first = pieces[0]
    stem = min([first.start, *(piece.common for piece in pieces[1:])])  # keys on every token's path
    positions = np.concatenate([np.arange(piece.start, len(piece.path)) for piece in pieces])
    if window is None:
        some_see = all_see = 0
    else:
        some_see = min(max(0, int(positions.min()) - window + 1), stem)  # the first key of the stem that any token sees
        all_see = min(max(0, int(positions.max()) - window + 1), stem)
    ends = np.cumsum([piece.length for piece in pieces])
    slots, masks = [], []
    for i, piece in enumerate(pieces):
        depths = np.arange(piece.common if i else stem, len(piece.path))
        if not i:
            depths = np.concatenate([np.arange(some_see, all_see), depths])
        until = np.full(len(depths), ends[i])  # the block's tokens before this one have a key on their path
        common = len(piece.path)
        for later, end in zip(pieces[i + 1 :], ends[i + 1 :], strict=True):
            common = min(common, later.common)
            until[depths < common] = end
        seen = np.arange(len(positions)) < until[:, None]
        seen[:, : ends[i] - piece.length] = False
        seen &= depths[:, None] <= positions
        if window is not None:
            seen &= depths[:, None] > positions - window
        kept = seen.any(axis=1)
        slots.append(piece.path[depths[kept]])
        masks.append(np.where(seen[kept], _BITS[: seen.shape[1]], np.uint64(0)).sum(axis=1, dtype=np.uint64))
    return first.path[all_see:stem], np.concatenate(slots), np.concatenate(masks)


def trees_of(blocks: Blocks) -> NDArray[np.int64]:
    """[trees + 1] bounds of the runs of blocks that share keys, where slots are places among the packed tokens."""
    _, _, shared, shared_counts, own, own_counts = blocks.table.T
    lowest = np.full(len(blocks.table), np.iinfo(np.int64).max)
    highest = np.full(len(blocks.table), -1)
    for firsts, counts, slots in ((shared, shared_counts, blocks.shared), (own, own_counts, blocks.own)):
        some = counts > 0
        lowest[some] = np.minimum(lowest[some], np.minimum.reduceat(slots, firsts[some]))
        highest[some] = np.maximum(highest[some], np.maximum.reduceat(slots, firsts[some]))
    lowest = np.minimum.accumulate(lowest[::-1])[::-1]  # of a block and all after it
    highest = np.maximum.accumulate(highest)  # of a block and all before it
    starts = np.append(True, lowest[1:] > highest[:-1])
    return np.append(np.flatnonzero(starts), len(starts))


def _firsts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each part begins, of parts that lie one after the other."""
    return lengths.cumsum() - lengths
