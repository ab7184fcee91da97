"""Which packed tokens the kernel takes together, and over which stored keys. Knows no tensor but arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.modeling.attention import Segment

MOST = 64  # tokens of a block: a mask has so many bits
_READING = 8  # reading a block's keys costs what so many queries do
_LANES = 8  # queries are computed by so many
BITS = np.left_shift(np.uint64(1), np.arange(MOST, dtype=np.uint64))


@dataclass(frozen=True)
class Blocks:
    """Packed tokens in blocks, as `block` in attention.c has them: all in the order in which they lie packed."""

    table: NDArray[np.int64]  # [B, 6]: token, tokens, shared, shares, own, owns
    shared: NDArray[np.int64]  # slots of keys that all tokens of a block see
    own: NDArray[np.int64]  # slots of further keys
    masks: NDArray[np.uint64]  # beside `own`: which of the block's tokens see the key, as bits

    @property
    def scored(self) -> int:
        """Products of a query and a key, those that are hidden included."""
        _, tokens, _, shares, _, owns = self.table.T
        return int((tokens * (shares + owns)).sum())


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of one segment that are in one block."""

    path: NDArray[np.int64]  # up to the last of them
    length: int
    common: int  # how much of the path the piece before it has too; 0 in a block's first

    @property
    def start(self) -> int:
        return len(self.path) - self.length


def blocks_of(segments: Sequence[Segment], window: int | None = None) -> Blocks:
    """Blocks for segments that lie packed one after the other, under a sliding window or none."""
    groups = list(_grouped(segments))
    shared, own, masks = zip(*(_block(pieces, window) for pieces in groups), strict=True)
    tokens, shares, owns = (
        np.array(lengths, dtype=np.int64)
        for lengths in (
            [sum(piece.length for piece in pieces) for pieces in groups],
            [len(slots) for slots in shared],
            [len(slots) for slots in own],
        )
    )
    table = np.stack([_firsts(tokens), tokens, _firsts(shares), shares, _firsts(owns), owns], axis=1)
    return Blocks(table, np.concatenate(shared), np.concatenate(own), np.concatenate(masks))


def _grouped(segments: Sequence[Segment]) -> Iterator[list[_Piece]]:
    """Segments cut into pieces; a segment's last piece and the segments after it share a block where that is less."""
    pieces: list[_Piece] = []
    tokens = keys = 0
    for segment in segments:
        begin, end = len(segment.path) - segment.length, len(segment.path)
        while begin < end:
            length = _share(end - begin)
            path = segment.path[: begin + length]
            common = _common(pieces[-1].path, path) if pieces else 0
            together = _cost(tokens + length, keys + len(path) - common)
            if pieces and (tokens + length > MOST or together > _cost(tokens, keys) + _cost(length, len(path))):
                yield pieces
                pieces, tokens, keys, common = [], 0, 0, 0
            pieces.append(_Piece(path, length, common))
            tokens, keys, begin = tokens + length, keys + len(path) - common, begin + length
    yield pieces


def _share(tokens: int) -> int:
    """The first of about equal pieces, of whole lanes: a small rest would read all its keys for a few queries."""
    parts = -(-tokens // MOST)
    return min(-(-tokens // (parts * _LANES)) * _LANES, tokens)


def _cost(tokens: int, keys: int) -> int:
    return (-(-tokens // _LANES) * _LANES + _READING) * keys


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many slots two paths begin with alike."""
    length = min(len(one), len(other))
    if one[length - 1] == other[length - 1]:  # a slot has one path
        return length
    return int((one[:length] != other[:length]).argmax())


def _block(
    pieces: Sequence[_Piece], window: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Shared slots, own slots and their masks."""
    first = pieces[0]
    stem = min([first.start, *(piece.common for piece in pieces[1:])])  # what all tokens follow
    positions = np.concatenate([np.arange(piece.start, len(piece.path)) for piece in pieces])
    if window is None:
        oldest = bare = 0
    else:
        oldest = min(max(0, int(positions.min()) - window + 1), stem)
        bare = min(max(0, int(positions.max()) - window + 1), stem)
    ends = np.cumsum([piece.length for piece in pieces])
    slots, masks = [], []
    for i, piece in enumerate(pieces):
        depths = np.arange(piece.common if i else stem, len(piece.path))
        if not i:
            depths = np.concatenate([np.arange(oldest, bare), depths])
        until = np.full(len(depths), ends[i])  # the block's tokens before this one are on a key's path
        passed = len(piece.path)
        for further, end in zip(pieces[i + 1 :], ends[i + 1 :], strict=True):
            passed = min(passed, further.common)
            until[depths < passed] = end
        seen = np.arange(len(positions)) < until[:, None]
        seen[:, : ends[i] - piece.length] = False
        seen &= depths[:, None] <= positions
        if window is not None:
            seen &= depths[:, None] > positions - window
        kept = seen.any(axis=1)
        slots.append(piece.path[depths[kept]])
        masks.append(bits_of(seen[kept]))
    return first.path[bare:stem], np.concatenate(slots), np.concatenate(masks)


def trees_of(blocks: Blocks) -> NDArray[np.int64]:
    """[forest + 1] bounds of the blocks that share keys, where slots are places among the packed tokens."""
    _, _, shared, shares, own, owns = blocks.table.T
    lowest = np.full(len(blocks.table), np.iinfo(np.int64).max)
    highest = np.full(len(blocks.table), -1)
    for firsts, counts, slots in ((shared, shares, blocks.shared), (own, owns, blocks.own)):
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


def bits_of(seen: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """[K, at most 64] -> [K]."""
    return np.where(seen, BITS[: seen.shape[1]], np.uint64(0)).sum(axis=1, dtype=np.uint64)
