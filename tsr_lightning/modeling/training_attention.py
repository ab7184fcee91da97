"""Attention for passes with gradients: packed rows that share prefixes are all that there is, nothing is stored.

In float32 on a CPU our kernel attends and goes the way back. All else is as in attention.py, in buckets. What differs
is the way back: a token's query and its own key are gathered into one place each, so their gradients are gathered too,
and only a prefix's further readers are added up. And a row that adds most of its length attends as a whole row:
causally, without a mask, which skips what lies above the diagonal and costs less than its prefix as mere keys; the
prefix's outputs are then left where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from tsr_lightning.modeling.attention import ScoreParams, Segment, additive, alike, dot_product, select_queries
from tsr_lightning.modeling.native import kernel
from tsr_lightning.modeling.native.blocks import Blocks, blocks_of
from tsr_lightning.modeling.native.training import attend_packed

_PIECE = 128  # the fewest queries at once under a sliding window


class PackedReader:
    """Attends for one forward pass over the segments of packed rows, and for the backward pass that follows."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = segments
        self.device = device
        self.longest = max(len(segment.path) for segment in segments)
        self._plans: dict[int | None, Plan] = {}
        self._blocks: dict[int | None, Blocks] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], key and value [K, T, D] -> [T, H, D]."""
        if value.dtype == torch.float32 and kernel.serves(value.device, value.dtype):
            return attend_packed(query, key, value, self.blocks(scores.window), scores)
        plan = self.plan(scores.window)
        query = plan.asked(query)
        key, value = plan.stored(key), plan.stored(value)
        return plan.answered([part.attend(query, key, value, scores) for part in plan.parts])

    def select_queries(self, reads: NDArray[np.int64]) -> "NarrowReader":
        return NarrowReader(self, reads)

    def plan(self, window: int | None) -> "Plan":
        """How layers of this sliding window attend by PyTorch."""
        window = self._cutting(window)
        if window not in self._plans:
            self._plans[window] = plan_of(self.segments, window, self.device)
        return self._plans[window]

    def blocks(self, window: int | None) -> Blocks:
        """And by our kernel."""
        window = self._cutting(window)
        if window not in self._blocks:
            self._blocks[window] = blocks_of(self.segments, window)
        return self._blocks[window]

    def _cutting(self, window: int | None) -> int | None:
        return None if window is None or window >= self.longest else window


@dataclass(frozen=True)
class NarrowReader:
    """Attends for some of the packed tokens alone. Without our kernel it attends for all, and takes what is read."""

    whole: PackedReader
    reads: NDArray[np.int64]  # [N] ascending

    @cached_property
    def _reader(self) -> PackedReader:
        return PackedReader(select_queries(self.whole.segments, self.reads), self.whole.device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, N, D], key and value [K, T, D] -> [N, H, D]."""
        if value.dtype == torch.float32 and kernel.serves(value.device, value.dtype):
            return self._reader.attend(layer, query, key, value, scores)
        reads = torch.from_numpy(self.reads).to(query.device)
        spread = query.new_zeros(query.shape[0], key.shape[1], query.shape[2]).index_copy(1, reads, query)
        return self.whole.attend(layer, spread, key, value, scores).index_select(0, reads)

    def select_queries(self, reads: NDArray[np.int64]) -> "NarrowReader":
        return NarrowReader(self.whole, self.reads[reads])


@dataclass(frozen=True)
class Part:
    """R segments of like shape, padded to N queries over L keys each; they lie side by side in what was gathered."""

    queries: slice  # of R * N
    keys: slice  # of R * L
    shape: tuple[int, int, int]  # R, N, L
    starts: Tensor | None  # [R] keys before a segment's first query; None where all are causal and whole
    window: int | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Gathered query [H, _, D], key and value [K, _, D] -> [R * N, H, D]."""
        query, key, value = (
            self._rows(tensor, which)
            for tensor, which in zip((query, key, value), (self.queries, self.keys, self.keys), strict=True)
        )
        mask = None if self.starts is None else self._mask(query.dtype)
        out = dot_product(query, key, value, mask, scores, causal=self.starts is None)
        return out.transpose(1, 2).flatten(0, 1)

    def _rows(self, tensor: Tensor, which: slice) -> Tensor:
        return tensor[:, which].unflatten(1, (self.shape[0], -1)).transpose(0, 1)

    def _mask(self, dtype: torch.dtype) -> Tensor:
        """[R, 1, N, L], made once for all layers. Keys beyond a row's end are seen by padding alone."""
        if dtype not in self._masks:
            assert self.starts is not None
            _, queries, keys = self.shape
            own = self.starts[:, None, None] + torch.arange(queries, device=self.starts.device)[None, :, None]
            others = torch.arange(keys, device=self.starts.device)[None, None, :]
            visible = others <= own
            if self.window is not None:
                visible &= others > own - self.window
            self._masks[dtype] = additive(visible, dtype)[:, None]
        return self._masks[dtype]

    @cached_property
    def _masks(self) -> dict[torch.dtype, Tensor]:
        return {}


@dataclass(frozen=True)
class Plan:
    """What is gathered from T packed tokens for the parts, and where it returns."""

    parts: tuple[Part, ...]
    queries: Tensor  # [Q] packed tokens
    answers: Tensor  # [T] where among the Q a token's own query is
    keys: Tensor  # [S] packed tokens
    owns: Tensor  # [T] where among the S a token's key stands in the segment that adds it
    readers: Tensor  # [E] further places among the S, of prefixes
    lenders: Tensor  # [E] and the packed tokens that they repeat
    needed: int  # products of a query and a key that there would be without padding

    @property
    def scored(self) -> int:
        """Products of a query and a key, padding included; what lies above the diagonal of a whole row apart."""
        return sum(_products(*part.shape, whole=part.starts is None) for part in self.parts)

    def asked(self, query: Tensor) -> Tensor:
        return _Gather.apply(query, self.queries, self.answers, None, None)

    def stored(self, key: Tensor) -> Tensor:
        return _Gather.apply(key, self.keys, self.owns, self.readers, self.lenders)

    def answered(self, parts: Sequence[Tensor]) -> Tensor:
        """[R * N, H, D] of all parts -> [T, H, D]."""
        return _Return.apply(torch.cat(list(parts)) if len(parts) > 1 else parts[0], self.answers)


class _Gather(torch.autograd.Function):
    """[H, T, D] at [S] places -> [H, S, D]. PyTorch's own way back adds up token by token, padding included."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, places: Tensor, owns: Tensor, readers: Tensor | None, lenders: Tensor | None
    ) -> Tensor:
        ctx.back = owns, readers, lenders
        return tensor.index_select(1, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        owns, readers, lenders = ctx.back
        total = gradient.index_select(1, owns)
        if readers is not None and len(readers):
            total.index_add_(1, lenders, gradient.index_select(1, readers))
        return total, None, None, None, None


class _Return(torch.autograd.Function):
    """[Q, H, D] at [T] places, none of them twice -> [T, H, D]; what is not taken has no gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, places: Tensor) -> Tensor:
        ctx.back = places, len(tensor)
        return tensor.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        places, length = ctx.back
        return gradient.new_zeros(length, *gradient.shape[1:]).index_copy_(0, places, gradient), None


def plan_of(segments: Sequence[Segment], window: int | None, device: torch.device) -> Plan:
    """The parts of segments that lie packed one after the other, under a sliding window or none."""
    pieces = list(segments) if window is None else [p for s in segments for p in _pieces(s, window)]
    firsts = np.cumsum([0, *(piece.length for piece in pieces)])
    whole = [_is_whole(piece, window) for piece in pieces]
    # a whole row asks for its prefix too
    asking = [Segment(len(p.path), p.path) if w else p for p, w in zip(pieces, whole, strict=True)]
    parts, queries, keys, readers, lenders = [], [], [], [], []
    answers, owns = np.empty(firsts[-1], dtype=np.int64), np.empty(firsts[-1], dtype=np.int64)
    asked = stored = 0
    for kind in (True, False):
        members = [i for i, is_whole in enumerate(whole) if is_whole is kind]
        for chosen in alike([asking[i] for i in members]):
            chosen = [members[i] for i in chosen]
            rows, most = len(chosen), max(asking[i].length for i in chosen)
            longest = max(len(asking[i].path) for i in chosen)
            for row, i in enumerate(chosen):
                path, length, own = asking[i].path, asking[i].length, slice(firsts[i], firsts[i + 1])
                start = len(path) - pieces[i].length
                queries.append(_filled(path[len(path) - length :], most))
                keys.append(_filled(path, longest))
                answers[own] = asked + row * most + np.arange(length - pieces[i].length, length)
                owns[own] = stored + row * longest + np.arange(start, len(path))
                readers.append(stored + row * longest + np.arange(start))
                lenders.append(path[:start])
            starts = np.array([len(asking[i].path) - asking[i].length for i in chosen], dtype=np.int64)
            parts.append(
                Part(
                    queries=slice(asked, asked + rows * most),
                    keys=slice(stored, stored + rows * longest),
                    shape=(rows, most, longest),
                    starts=None if kind else torch.from_numpy(starts).to(device),
                    window=window,
                )
            )
            asked += rows * most
            stored += rows * longest
    return Plan(
        parts=tuple(parts),
        queries=_on(device, *queries),
        answers=_on(device, answers),
        keys=_on(device, *keys),
        owns=_on(device, owns),
        readers=_on(device, *readers),
        lenders=_on(device, *lenders),
        needed=sum(_products(1, p.length, len(p.path), whole=w) for p, w in zip(asking, whole, strict=True)),
    )


def _is_whole(piece: Segment, window: int | None) -> bool:
    """Half of a square is less than the oblong, and no window cuts into it."""
    return 2 * piece.length >= len(piece.path) and (window is None or len(piece.path) <= window)


def _pieces(segment: Segment, window: int) -> list[Segment]:
    """A segment cut so that no piece scores many keys which its window hides."""
    size = max(window, _PIECE)
    start = len(segment.path) - segment.length
    pieces = []
    for begin in range(start, len(segment.path), size):
        end = min(begin + size, len(segment.path))
        pieces.append(Segment(end - begin, segment.path[max(0, begin - window + 1) : end]))
    return pieces


def _products(rows: int, queries: int, keys: int, *, whole: bool) -> int:
    return rows * (queries * (queries + 1) // 2 if whole else queries * keys)


def _filled(path: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Padding repeats a token: any finite number will do."""
    return np.concatenate([path, np.full(length - len(path), path[-1])])


def _on(device: torch.device, *indices: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.concatenate(indices)).to(device)
