"""Packed attention by PyTorch, on any device.

Segments of similar shape are padded into buckets, and a bucket is one call of scaled dot-product attention. Padding
exists in there alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.modeling.attention import ScoreParams, additive, dot_product
from tsr_lightning.modeling.segments import Segment

MASK_ELEMENTS = 2**23  # of one bucket: 32 MiB in float32
_PADDING = 1.15  # R * N * L of a bucket, at most so many times what its segments need


@dataclass(frozen=True)
class Bucket:
    """R segments of similar shape, padded to N queries over L keys."""

    queries: slice  # its R * N among the plan's Q
    keys: slice  # its R * L among the plan's S
    shape: tuple[int, int, int]  # R, N, L
    starts: Tensor | None  # [R] keys before a segment's first query; None: all are causal squares and need no mask

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, R * N, D], key and value [K, R * L, D] -> [R * N, H, D]."""
        query, key, value = (x.unflatten(1, (self.shape[0], -1)).transpose(0, 1) for x in (query, key, value))
        mask = None if self.starts is None else self._mask(self.starts, query.dtype, scores.window)
        out = dot_product(query, key, value, mask, scores, causal=mask is None)
        return out.transpose(1, 2).flatten(0, 1)

    def _mask(self, starts: Tensor, dtype: torch.dtype, window: int | None) -> Tensor:
        """[R, 1, N, L] added to the scores, built once for all layers. Only padding sees keys beyond a row's end."""
        if (dtype, window) not in self._masks:
            _, queries, keys = self.shape
            own = starts[:, None, None] + torch.arange(queries, device=starts.device)[None, :, None]
            others = torch.arange(keys, device=starts.device)[None, None, :]
            visible = others <= own
            if window is not None:
                visible &= others > own - window
            self._masks[dtype, window] = additive(visible, dtype)[:, None]
        return self._masks[dtype, window]

    @cached_property
    def _masks(self) -> dict[tuple[torch.dtype, int | None], Tensor]:
        return {}


@dataclass(frozen=True)
class BucketPlan:
    """Buckets of all segments, and where their queries and keys lie, one bucket after the other."""

    buckets: tuple[Bucket, ...]
    queries: Tensor  # [Q] packed tokens
    keys: Tensor  # [S] stored keys
    order: tuple[int, ...]  # the segments, bucket by bucket
    first_query: NDArray[np.int64]  # of each segment, among the Q
    first_key: NDArray[np.int64]  # of each segment, among the S

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, padding included; what a causal square skips is not."""
        return sum(products(*bucket.shape, causal=bucket.starts is None) for bucket in self.buckets)


def plan_buckets(
    segments: Sequence[Segment], queries: Sequence[NDArray[np.int64]], causal: Sequence[bool], device: torch.device
) -> BucketPlan:
    """Buckets for segments whose queries are these packed tokens.

    Args:
        segments: of lengths N.
        queries: [N] of each segment.
        causal: whether a segment is a causal square, which needs no mask; such segments have buckets of their own.
        device: of the plan's tensors.
    """
    buckets, order, all_queries, all_keys = [], [], [], []
    first_query, first_key = np.empty(len(segments), dtype=np.int64), np.empty(len(segments), dtype=np.int64)
    query = key = 0
    for is_causal in (True, False):
        members = [i for i in range(len(segments)) if causal[i] is is_causal]
        for part in _similar([segments[i] for i in members]):
            chosen = [members[i] for i in part]
            rows, width = len(chosen), max(segments[i].length for i in chosen)
            length = max(len(segments[i].path) for i in chosen)
            all_queries += [_padded(queries[i], width) for i in chosen]
            all_keys += [_padded(segments[i].path, length) for i in chosen]
            first_query[chosen] = query + width * np.arange(rows)
            first_key[chosen] = key + length * np.arange(rows)
            order += chosen
            starts = None if is_causal else indices([np.array([segments[i].start for i in chosen])], device)
            query_slice, key_slice = slice(query, query + rows * width), slice(key, key + rows * length)
            buckets.append(Bucket(query_slice, key_slice, (rows, width, length), starts))
            query, key = query_slice.stop, key_slice.stop
    return BucketPlan(
        tuple(buckets), indices(all_queries, device), indices(all_keys, device), tuple(order), first_query, first_key
    )


def products(rows: int, queries: int, keys: int, *, causal: bool) -> int:
    """Counts products of a query and a key; a causal square skips what lies above its diagonal."""
    return rows * (queries * (queries + 1) // 2 if causal else queries * keys)


def indices(parts: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """The parts, one after the other."""
    return torch.from_numpy(np.concatenate(parts)).to(device)


class StoredAttention:
    """Attends over stored keys, without gradients: segments lie packed one after the other."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        lengths = np.array([segment.length for segment in segments])
        firsts = lengths.cumsum() - lengths
        queries = [np.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)]
        self.plan = plan_buckets(segments, queries, [False] * len(segments), device)
        outputs = [np.arange(first, first + n) for first, n in zip(self.plan.first_query, lengths, strict=True)]
        self._outputs = indices(outputs, device)  # [T] where among the Q each packed token's output is

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], stored key and value [K, S, D] -> [T, H, D]. Gathers keys for one bucket at a time."""
        parts = []
        for bucket in self.plan.buckets:
            queries, keys = self.plan.queries[bucket.queries], self.plan.keys[bucket.keys]
            gathered = query.index_select(1, queries), key.index_select(1, keys), value.index_select(1, keys)
            parts.append(bucket.attend(*gathered, scores))
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, self._outputs)


def _similar(segments: Sequence[Segment]) -> Iterator[list[int]]:
    """Indices of the segments in parts with little padding."""
    order = sorted(range(len(segments)), key=lambda i: (len(segments[i].path), segments[i].length))
    part: list[int] = []
    queries = keys = needed = 0
    for i in order:
        length, path = segments[i].length, len(segments[i].path)
        wider, longer = max(queries, length), max(keys, path)
        padded = (len(part) + 1) * wider * longer
        if part and (padded > _PADDING * (needed + length * path) + 4096 or padded > MASK_ELEMENTS):
            yield part
            part, needed, wider, longer = [], 0, length, path
        part.append(i)
        queries, keys, needed = wider, longer, needed + length * path
    if part:
        yield part


def _padded(tokens: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Padding repeats the last token: any finite key or query will do."""
    return np.concatenate([tokens, np.full(length - len(tokens), tokens[-1])])
