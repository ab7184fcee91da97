"""The terms of a loss as pure functions of tensors [N]."""

from typing import NamedTuple

import torch
from torch import Tensor

# e^20 is finite in float32, and far outside any clip. A token beyond it has no gradient through the ratio.
LOG_RATIO_LIMIT = 20.0


class ClippedLoss(NamedTuple):
    """A clipped loss per token."""

    losses: Tensor  # [N]
    is_clipped: Tensor  # [N] bool: the clip is active, so there is no gradient


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log(pi / pi_old), limited so that its exponential is finite in float32."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k3(log_ratios: Tensor) -> Tensor:
    """The estimator k3 of KL(p || q) from samples of p, given log(q / p): r - 1 - log r with r = q / p.

    Unbiased and never negative: http://joschu.net/blog/kl-approx.html. Written with expm1, since r - 1 cancels in
    float32 near r = 1.
    """
    return torch.expm1(log_ratios) - log_ratios


def clipped_surrogate(log_ratios: Tensor, advantages: Tensor, *, low: float, high: float) -> ClippedLoss:
    """Equation 7 of https://arxiv.org/abs/1707.06347 with the two widths of https://arxiv.org/abs/2503.14476 (DAPO):
    -min(r A, clip(r, 1 - low, 1 + high) A).
    """
    ratios = log_ratios.exp()
    losses = -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    is_clipped = torch.where(advantages > 0, ratios > 1 + high, (advantages < 0) & (ratios < 1 - low))
    return ClippedLoss(losses, is_clipped)


def clipped_value_loss(values: Tensor, old_values: Tensor, value_targets: Tensor, *, clip: float | None) -> ClippedLoss:
    """Half the larger of the squared errors of the value and of the value clipped to within `clip` of the old one.

        max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2

    Not in the PPO paper but in its authors' code; detail 9 of
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details. `None` is the plain squared error.
    """
    unclipped = (values - value_targets).square()
    if clip is None:
        return ClippedLoss(unclipped / 2, torch.zeros_like(unclipped, dtype=torch.bool))
    change = values - old_values
    clipped = (old_values + change.clamp(-clip, clip) - value_targets).square()
    # Rounding makes `clipped` differ from `unclipped` even where no clip is active, so their order alone is not enough.
    return ClippedLoss(torch.maximum(unclipped, clipped) / 2, (change.abs() > clip) & (clipped > unclipped))
