"""The kernel as a function with gradients, over packed tokens that are their own store."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.native.blocks import Blocks, trees_of
from tsr_lightning.modeling.native.kernel import attend, attend_back


def attend_packed(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scores: ScoreParams) -> Tensor:
    """Query [H, T, D], key [K, T, D] and value [K, T, E] in float32 -> [T, H, E]."""
    return _Attention.apply(query, key, value, blocks, scores)


class _Attention(torch.autograd.Function):
    """Keeps the logarithms of the softmax's sums, from which the way back makes the weights anew (FlashAttention,
    arXiv 2205.14135, algorithm 4). A key's gradient is added up in one order, whatever the number of threads."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scores: ScoreParams) -> Tensor:
        key, value = key.contiguous(), value.contiguous()
        sums = query.new_empty(query.shape[:2])
        out = attend(query, key, value, blocks, scores, sums=sums)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.plan = blocks, scores
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks, scores = ctx.plan
        query, key, value, out, sums = ctx.saved_tensors
        found = attend_back(gradient, query, key, value, out, sums, blocks, scores, trees_of(blocks))
        return *found, None, None
