"""The attention kernel as a function with gradients, over packed tokens that are their own key store."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.native.blocks import BlockPlan, Blocks, trees_of
from tsr_lightning.modeling.native.kernel import attend, attend_backward
from tsr_lightning.modeling.segments import Segment


class NativeTrainingAttention:
    """Attends over packed segments whose paths are packed tokens."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._plan = BlockPlan(segments)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], key [K, S, D] and value [K, S, E], all of one type -> [T, H, E]."""
        return _Attention.apply(query, key, value, self._plan.blocks(scores.window), scores)


class _Attention(torch.autograd.Function):
    """Keeps the softmax's log-sums, from which the backward pass recomputes the weights (FlashAttention, arXiv
    2205.14135, algorithm 4), in float32. A key's gradient is added up in one order, whatever the number of threads."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scores: ScoreParams) -> Tensor:
        key, value = key.contiguous(), value.contiguous()
        log_sums = query.new_empty(query.shape[:2], dtype=torch.float32)
        out = attend(query, key, value, blocks, scores, log_sums=log_sums)
        ctx.save_for_backward(query, key, value, out, log_sums)
        ctx.plan = blocks, scores
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks, scores = ctx.plan
        query, key, value, out, log_sums = ctx.saved_tensors
        gradients = attend_backward(gradient, query, key, value, out, log_sums, blocks, scores, trees_of(blocks))
        return *(each.to(gradient.dtype) for each in gradients), None, None
