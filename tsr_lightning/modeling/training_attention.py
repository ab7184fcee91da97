"""Attention with gradients over packed sequences that share prefixes; nothing is stored.

On a CPU the native kernel computes both passes, and on a GPU flex_attention, if `Kernels` allows it.
Otherwise PyTorch does, in the same buckets as for the engine, with two differences. A token's query and its own key are
each gathered into one place, so their gradients are gathered too, and only those of prefixes repeated for further
segments are added up. And a segment that adds most of its sequence attends as the whole sequence, causally and without
a mask: skipping what lies above the diagonal saves more than the prefix's queries cost, whose outputs are dropped.
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

from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.buckets import BucketPlan, indices, plan_buckets
from tsr_lightning.modeling.flex import FlexAttention, HeadShape
from tsr_lightning.modeling.kernels import Kernels, native_training_attention
from tsr_lightning.modeling.segments import Segment, select_queries

_PIECE = 128  # the fewest queries of a piece under a sliding window


class TrainingAttention:
    """Attends for one forward pass over packed segments, and for the backward pass that follows.

    Args:
        segments: lie packed one after the other; their paths are packed tokens.
        device: of the tokens.
        kernels: which may be used.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device, kernels: Kernels = Kernels.AUTO) -> None:
        self.segments = segments
        self.device = device
        self.kernels = kernels
        self._native = native_training_attention(segments)
        self._longest = max(len(segment.path) for segment in segments)
        self._plans: dict[int | None, TrainingPlan] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], key and value [K, T, D] -> [T, H, D]."""
        if self.uses_native(value):
            return self._native.attend(layer, query, key, value, scores)
        if self.uses_flex(query, value):
            return self._flex.attend(query, key, value, scores)
        return self.plan(scores.window).attend(query, key, value, scores)

    def select_queries(self, tokens: NDArray[np.int64]) -> "SelectedQueries":
        """For the last layer, where only the packed `tokens` [N], ascending, have queries."""
        return SelectedQueries(self, tokens)

    def uses_native(self, value: Tensor) -> bool:
        return self.kernels.uses_native(value.device, value.dtype)

    def uses_flex(self, query: Tensor, value: Tensor) -> bool:
        shape, gradients = HeadShape.of(query, value), torch.is_grad_enabled()
        return self.kernels.uses_flex(value.device, shape, gradients=gradients)

    @cached_property
    def _flex(self) -> FlexAttention:
        return FlexAttention(self.segments, self.device)

    def plan(self, window: int | None) -> "TrainingPlan":
        """Returns the plan by which layers with this sliding window attend in PyTorch."""
        window = None if window is None or window >= self._longest else window
        if window not in self._plans:
            self._plans[window] = plan_training(self.segments, window, self.device)
        return self._plans[window]


class SelectedQueries:
    """Attends for some of the packed tokens. In PyTorch's buckets all attend, and the others' outputs are dropped."""

    def __init__(self, whole: TrainingAttention, tokens: NDArray[np.int64]) -> None:
        self._whole = whole
        self._tokens = tokens
        self._segments = select_queries(whole.segments, tokens)
        self._native = native_training_attention(self._segments)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, N, D], key and value [K, T, D] -> [N, H, D]."""
        if self._whole.uses_native(value):
            return self._native.attend(layer, query, key, value, scores)
        if self._whole.uses_flex(query, value):
            return self._flex.attend(query, key, value, scores)
        tokens = torch.from_numpy(self._tokens).to(query.device)
        spread = query.new_zeros(query.shape[0], key.shape[1], query.shape[2]).index_copy(1, tokens, query)
        return self._whole.attend(layer, spread, key, value, scores).index_select(0, tokens)

    @cached_property
    def _flex(self) -> FlexAttention:
        return FlexAttention(self._segments, self._whole.device)


@dataclass(frozen=True)
class TrainingPlan:
    """Buckets over T packed tokens, and where gradients come from."""

    buckets: BucketPlan
    outputs: Tensor  # [T] where among the buckets' Q queries each token's own is
    own_keys: Tensor  # [T] where among the buckets' S keys each token's own is, in the segment that adds it
    repeated_keys: Tensor  # [E] the other places among the S, of prefixes
    repeated_tokens: Tensor  # [E] and the packed tokens that they repeat

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], key and value [K, T, D] -> [T, H, D]."""
        plan = self.buckets
        query = _Gather.apply(query, plan.queries, self.outputs, None, None)
        key, value = (
            _Gather.apply(x, plan.keys, self.own_keys, self.repeated_keys, self.repeated_tokens) for x in (key, value)
        )
        parts = [
            bucket.attend(query[:, bucket.queries], key[:, bucket.keys], value[:, bucket.keys], scores)
            for bucket in plan.buckets
        ]
        return _Return.apply(torch.cat(parts) if len(parts) > 1 else parts[0], self.outputs)


class _Gather(torch.autograd.Function):
    """[H, T, D] at places [S] -> [H, S, D]. PyTorch's own backward pass adds up token by token, padding included."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, places: Tensor, own: Tensor, repeated: Tensor | None, tokens: Tensor | None
    ) -> Tensor:
        ctx.places = own, repeated, tokens
        return tensor.index_select(1, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, repeated, tokens = ctx.places
        total = gradient.index_select(1, own)
        if repeated is not None and len(repeated):
            total.index_add_(1, tokens, gradient.index_select(1, repeated))
        return total, None, None, None, None


class _Return(torch.autograd.Function):
    """[Q, H, D] at distinct places [T] -> [T, H, D]; the other places have no gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, places: Tensor) -> Tensor:
        ctx.places = places, len(tensor)
        return tensor.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        places, length = ctx.places
        return gradient.new_zeros(length, *gradient.shape[1:]).index_copy_(0, places, gradient), None


def plan_training(segments: Sequence[Segment], window: int | None, device: torch.device) -> TrainingPlan:
    """Buckets for segments that lie packed one after the other, under a sliding window or none."""
    pieces = list(segments) if window is None else [piece for s in segments for piece in _pieces(s, window)]
    causal = [_is_causal(piece, window) for piece in pieces]
    # a whole sequence has the prefix's queries too
    attending = [Segment(len(p.path), p.path) if c else p for p, c in zip(pieces, causal, strict=True)]
    plan = plan_buckets(attending, [segment.path[segment.start :] for segment in attending], causal, device)
    outputs, own_keys = [], []
    for i, piece in enumerate(pieces):
        outputs.append(plan.first_query[i] + np.arange(attending[i].length - piece.length, attending[i].length))
        own_keys.append(plan.first_key[i] + np.arange(piece.start, len(piece.path)))
    return TrainingPlan(
        buckets=plan,
        outputs=indices(outputs, device),
        own_keys=indices(own_keys, device),
        repeated_keys=indices([plan.first_key[i] + np.arange(pieces[i].start) for i in plan.order], device),
        repeated_tokens=indices([pieces[i].path[: pieces[i].start] for i in plan.order], device),
    )


def _is_causal(piece: Segment, window: int | None) -> bool:
    """Half of the sequence's square is less than the segment's rectangle, and no window cuts into it."""
    return 2 * piece.length >= len(piece.path) and (window is None or len(piece.path) <= window)


def _pieces(segment: Segment, window: int) -> list[Segment]:
    """A segment cut into pieces, so that few keys are scored that the window hides."""
    size = max(window, _PIECE)
    pieces = []
    for begin in range(segment.start, len(segment.path), size):
        end = min(begin + size, len(segment.path))
        pieces.append(Segment(end - begin, segment.path[max(0, begin - window + 1) : end]))
    return pieces
