"""The terms of a loss, token by token. All [N] in and out unless said; knows no objective."""

from typing import NamedTuple

import torch
from torch import Tensor

from tsr_lightning.objectives.base import Loss, Outputs, Targets

# e^20 is finite in float32, and far outside any clip. A token beyond it carries no gradient of the ratio.
LOG_RATIO_LIMIT = 20.0


class Clipped(NamedTuple):
    """A clipped term, to be minimised."""

    terms: Tensor  # [N]
    is_clipped: Tensor  # [N] bool: the clip decides here, and there is no gradient


def log_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """log(pi / pi_old), kept within float32's reach once exponentiated."""
    return (logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k3(log_ratios: Tensor) -> Tensor:
    """The estimator k3 of KL(p || q) from samples of p, given log(q / p): r - 1 - log r with r = q / p.

    Unbiased and never negative: http://joschu.net/blog/kl-approx.html. By expm1, since near r = 1 the plain form
    cancels in float32.
    """
    return torch.expm1(log_ratios) - log_ratios


def clipped_policy(log_ratios: Tensor, advantages: Tensor, *, low: float, high: float) -> Clipped:
    """Equation 7 of https://arxiv.org/abs/1707.06347 with the two widths of https://arxiv.org/abs/2503.14476 (DAPO):
    -min(r A, clip(r, 1 - low, 1 + high) A).
    """
    ratios = log_ratios.exp()
    terms = -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    is_clipped = torch.where(advantages > 0, ratios > 1 + high, (advantages < 0) & (ratios < 1 - low))
    return Clipped(terms, is_clipped)


def clipped_value(values: Tensor, old: Tensor, value_targets: Tensor, *, clip: float | None) -> Clipped:
    """Half the squared error of the critic, the worse of moving freely and moving by at most `clip`.

        max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2

    Not in the PPO paper but in its authors' code; detail 9 of
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details. `None` is the plain squared error.
    """
    free = (values - value_targets).square()
    if clip is None:
        return Clipped(free / 2, torch.zeros_like(free, dtype=torch.bool))
    moved = values - old
    kept = (old + moved.clamp(-clip, clip) - value_targets).square()
    # old + (values - old) is off by a rounding where nothing is clipped, so `kept > free` alone does not tell.
    return Clipped(torch.maximum(free, kept) / 2, (moved.abs() > clip) & (kept > free))


def policy_loss(
    targets: Targets,
    outputs: Outputs,
    *,
    clip_low: float,
    clip_high: float,
    entropy_coefficient: float,
    kl_coefficient: float,
) -> Loss:
    """The clipped policy term, less the entropy, plus k3 to the reference: sums of weight * term and nothing else.

    The KL term is as in GRPO (equation 4 of https://arxiv.org/abs/2402.03300): differentiated as it stands, with no
    correction for the distance from the policy that sampled. It and its statistic are left out at coefficient 0, where
    there is no reference; so is the gradient through the entropies.
    """
    weights = targets.weights
    ratios = log_ratio(outputs.logprobs, targets.logprobs)
    policy = clipped_policy(ratios, targets.advantages, low=clip_low, high=clip_high)
    entropies = outputs.entropies if entropy_coefficient else outputs.entropies.detach()
    surrogate = (weights * policy.terms).sum()
    entropy = (weights * entropies).sum()
    total = surrogate - entropy_coefficient * entropy
    passed = ratios.detach()
    stats = {
        "policy_loss": surrogate.detach(),
        "policy_weight": weights.sum(),
        "entropy": entropy.detach(),
        "approx_kl": (weights * k3(passed)).sum(),
        "clip_fraction": (weights * policy.is_clipped).sum(),
        "ratio_deviation": (weights * torch.expm1(passed).abs()).sum(),
    }
    if kl_coefficient:
        kl = (weights * k3(log_ratio(targets.reference, outputs.logprobs))).sum()
        total = total + kl_coefficient * kl
        stats["kl_reference"] = kl.detach()
    return Loss(total, stats)


def value_loss(targets: Targets, outputs: Outputs, *, clip: float | None) -> Loss:
    """The critic's term, with weights of its own."""
    weights = targets.value_weights
    value = clipped_value(outputs.values, targets.values, targets.value_targets, clip=clip)
    total = (weights * value.terms).sum()
    stats = {
        "value_loss": total.detach(),
        "value_weight": weights.sum(),
        "value_clip_fraction": (weights * value.is_clipped).sum(),
    }
    return Loss(total, stats)
