"""Packs sequences into one without padding, shared prefixes once. Knows token ids, and no model.

In lexicographic order, the longest prefix that a sequence shares with any earlier one is the prefix that it shares with
its predecessor. So each sequence adds only the rest of its tokens, and attends to its predecessor's prefix and these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.modeling.segments import Segment

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
_EMPTY: Ids = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Packed:
    """Model inputs of T tokens for N sampled tokens. Sequences that share a prefix and the next token share an output,
    so the model computes M <= N of them."""

    ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, of each token in its own sequence
    segments: tuple[Segment, ...]  # [<= sequences] what each sequence adds, in packed order
    output_positions: Tensor  # [M] int64, packed tokens whose final hidden state is needed
    target_ids: Tensor  # [M] int64, the token sampled after each
    target_index: Tensor  # [N] int64, which of the M each sampled token is, sequence after sequence
    unshared_tokens: int  # T if no prefix were shared

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> "Packed":
        return replace(
            self,
            ids=self.ids.to(device),
            positions=self.positions.to(device),
            output_positions=self.output_positions.to(device),
            target_ids=self.target_ids.to(device),
            target_index=self.target_index.to(device),
        )


def pack(sequences: Sequence[tuple[Ids, Mask]]) -> Packed:
    """Packs sequences of ids [L] and a mask [L], true at the sampled ids and never at a sequence's first."""
    inputs = [model_inputs(ids, mask) for ids, mask in sequences]
    paths: dict[int, Ids] = {}  # of each sequence, the packed tokens that it consists of
    segments, ids, positions = [], [], []
    previous: Ids = np.empty(0, dtype=np.int64)
    path = previous
    total = 0
    for i in lexicographic_order(inputs):
        current = inputs[i]
        shared = common_prefix_length(previous, current)
        added = len(current) - shared
        path = paths[i] = np.concatenate([path[:shared], np.arange(total, total + added)])
        if added:
            segments.append(Segment(added, path))
            ids.append(current[shared:])
            positions.append(np.arange(shared, len(current)))
        previous = current
        total += added
    sampled_at = [mask.nonzero()[0] for _, mask in sequences]
    outputs = np.concatenate([paths[i][at - 1] for i, at in enumerate(sampled_at)])
    targets = np.concatenate([whole[at] for (whole, _), at in zip(sequences, sampled_at, strict=True)])
    vocabulary = int(targets.max(initial=0)) + 1
    pairs, target_index = np.unique(outputs * vocabulary + targets, return_inverse=True)
    return Packed(
        ids=torch.from_numpy(np.concatenate(ids)),
        positions=torch.from_numpy(np.concatenate(positions)),
        segments=tuple(segments),
        output_positions=torch.from_numpy(pairs // vocabulary),
        target_ids=torch.from_numpy(pairs % vocabulary),
        target_index=torch.from_numpy(target_index),
        unshared_tokens=sum(map(len, inputs)),
    )


def model_inputs(ids: Ids, mask: Mask) -> Ids:
    """The ids before the last sampled one, which is only a target; all of them where none was sampled."""
    sampled_at = mask.nonzero()[0]
    return ids[: sampled_at[-1]] if len(sampled_at) else ids


def lexicographic_order(inputs: Sequence[Ids]) -> list[int]:
    """Indices that sort sequences by their ids."""
    keys = [ids.astype(">i8").tobytes() for ids in inputs]  # big-endian, so that bytes compare as the ids do
    return sorted(range(len(inputs)), key=keys.__getitem__)


def common_prefix_length(left: Ids, right: Ids) -> int:
    length = min(len(left), len(right))
    differing = (left[:length] != right[:length]).nonzero()[0]
    return int(differing[0]) if len(differing) else length


def added_tokens(ordered: Sequence[Ids]) -> list[int]:
    """The tokens that each sequence adds to those before it, in lexicographic order."""
    return [len(ids) - common_prefix_length(before, ids) for before, ids in pairwise([_EMPTY, *ordered])]


def split_by_tokens(ordered: Sequence[Ids], max_tokens: int) -> list[range]:
    """Splits sequences in lexicographic order into packs of at most `max_tokens`; a longer one is a pack by itself."""
    packs: list[range] = []
    start = used = 0
    for i, added in enumerate(added_tokens(ordered)):
        if i > start and used + added > max_tokens:
            packs.append(range(start, i))
            start, used, added = i, 0, len(ordered[i])
        used += added
    return [*packs, range(start, len(ordered))] if ordered else []


def shard(ordered: Sequence[Ids], parts: int) -> list[range]:
    """Splits sequences in lexicographic order into `parts` of about equally many tokens, none of them empty unless
    there are fewer sequences than parts."""
    return split_evenly(added_tokens(ordered), parts)


def split_evenly(weights: Sequence[int], parts: int) -> list[range]:
    """Splits items, in their order, into `parts` of about equal weight, none of them empty unless there are fewer items
    than parts."""
    count, ends = len(weights), np.cumsum([0, *weights])  # [items + 1]
    bounds = [0]
    for part in range(1, parts):
        nearest = int(np.abs(ends - ends[-1] * part / parts).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), max(count - parts + part, bounds[-1]), count))
    return [range(start, end) for start, end in zip(bounds, [*bounds[1:], count], strict=True)]


def share_out(items: Sequence[Sequence[Ids]], parts: int) -> list[list[int]]:
    """Shares items of one or more sequences out into `parts` of about as many packed tokens each: their indices, in
    ascending order. Items whose first sequences share a prefix stay together, so that few parts compute it twice."""
    owners = [item for item, sequences in enumerate(items) for _ in sequences]
    flat = [ids for sequences in items for ids in sequences]
    order = lexicographic_order(flat)
    weights = [0] * len(items)
    for i, added in zip(order, added_tokens([flat[i] for i in order]), strict=True):
        weights[owners[i]] += added
    by_prefix = lexicographic_order([sequences[0] if sequences else _EMPTY for sequences in items])
    shares = split_evenly([weights[item] for item in by_prefix], parts)
    return [sorted(by_prefix[i] for i in share) for share in shares]
