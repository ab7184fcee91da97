"""Rows as one packed sequence without padding, their shared prefixes once. Knows token ids, and no model.

In the order of their ids, the longest prefix that a row shares with any row before it is the one that it shares with
the row just before. A row therefore adds its new tokens alone; its keys are its neighbour's up to there, and its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.modeling.segments import Segment

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Packed:
    """What the model is run on. N tokens were sampled; where rows share some, they are read once, so M <= N."""

    ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, of each in its own row
    segments: tuple[Segment, ...]  # [<= rows] what each row adds, in packed order
    reads: Tensor  # [M] int64, packed tokens after which something was sampled
    sampled: Tensor  # [M] int64, and what
    places: Tensor  # [N] int64, which of the M each sampled token is, row after row
    unshared: int  # tokens that the rows would have one by one

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> "Packed":
        moved = {name: getattr(self, name).to(device) for name in ("ids", "positions", "reads", "sampled", "places")}
        return replace(self, **moved)


def pack(rows: Sequence[tuple[Ids, NDArray[np.bool_]]]) -> Packed:
    """Rows of ids [L] and a mask [L], true at the sampled ids and never at a row's first, as one packed sequence.

    What lies behind a row's last context is left out: its last sampled token is told, and not fed.
    """
    fed = [read_part(ids, mask) for ids, mask in rows]
    paths: dict[int, Ids] = {}
    segments, ids, positions = [], [], []
    before: Ids = np.empty(0, dtype=np.int64)
    path = before
    total = 0
    for i in in_order(fed):
        row = fed[i]
        shared = in_common(before, row)
        fresh = len(row) - shared
        path = paths[i] = np.concatenate([path[:shared], np.arange(total, total + fresh)])
        if fresh:
            segments.append(Segment(fresh, path))
            ids.append(row[shared:])
            positions.append(np.arange(shared, len(row)))
        before = row
        total += fresh
    sampled_at = [mask.nonzero()[0] for _, mask in rows]
    reads = np.concatenate([paths[i][at - 1] for i, at in enumerate(sampled_at)])
    sampled = np.concatenate([row[at] for (row, _), at in zip(rows, sampled_at, strict=True)])
    vocabulary = int(sampled.max(initial=0)) + 1
    pairs, places = np.unique(reads * vocabulary + sampled, return_inverse=True)
    return Packed(
        ids=torch.from_numpy(np.concatenate(ids)),
        positions=torch.from_numpy(np.concatenate(positions)),
        segments=tuple(segments),
        reads=torch.from_numpy(pairs // vocabulary),
        sampled=torch.from_numpy(pairs % vocabulary),
        places=torch.from_numpy(places),
        unshared=sum(map(len, fed)),
    )


def read_part(ids: Ids, mask: NDArray[np.bool_]) -> Ids:
    """The part of a row after which something was sampled; all of one where nothing was."""
    at = mask.nonzero()[0]
    return ids[: at[-1]] if len(at) else ids


def in_order(rows: Sequence[Ids]) -> list[int]:
    """The rows' order by their ids, as words in a dictionary."""
    words = [row.astype(">i8").tobytes() for row in rows]  # the most significant byte first
    return sorted(range(len(rows)), key=words.__getitem__)


def in_common(one: Ids, other: Ids) -> int:
    """How many ids the two begin with alike."""
    length = min(len(one), len(other))
    differing = (one[:length] != other[:length]).nonzero()[0]
    return int(differing[0]) if len(differing) else length


def costs(rows: Sequence[Ids]) -> list[int]:
    """The tokens that each row adds to those before it: rows in order."""
    before: Ids = np.empty(0, dtype=np.int64)
    added = []
    for row in rows:
        added.append(len(row) - in_common(before, row))
        before = row
    return added


def cut(rows: Sequence[Ids], most: int) -> list[range]:
    """Rows in order, cut into packs of at most so many tokens; a longer row is a pack by itself."""
    packs: list[range] = []
    start = used = 0
    for i, added in enumerate(costs(rows)):
        if i > start and used + added > most:
            packs.append(range(start, i))
            start, used, added = i, 0, len(rows[i])
        used += added
    return [*packs, range(start, len(rows))] if rows else []


def shard(rows: Sequence[Ids], parts: int) -> list[range]:
    """Rows in order, cut into as many parts of about equally many tokens; none is empty while there are rows enough."""
    done = np.cumsum(costs(rows))
    bounds = [0]
    for part in range(1, parts):
        wanted = int(np.searchsorted(done, done[-1] * part / parts)) + 1
        bounds.append(min(max(wanted, bounds[-1] + 1), max(len(rows) - parts + part, bounds[-1]), len(rows)))
    return [range(start, end) for start, end in zip(bounds, [*bounds[1:], len(rows)], strict=True)]
