"""The losses of a micro-batch: sums over its tokens, weighted by the aggregation, with their statistics."""

from dataclasses import dataclass

import torch

from tsr_lightning.batching.tensors import Outputs, Targets
from tsr_lightning.errors import require, require_coefficient
from tsr_lightning.objectives.base import Loss
from tsr_lightning.objectives.kl import KL
from tsr_lightning.objectives.surrogates import Surrogate
from tsr_lightning.objectives.terms import binary_kl, clipped_value_loss, k3, log_ratio


def policy_loss(
    targets: Targets, outputs: Outputs, surrogate: Surrogate, kl: KL | None, entropy_coefficient: float
) -> Loss:
    """The surrogate, minus the entropy, plus the KL term. A term without a coefficient has no gradient."""
    weights = targets.weights
    log_ratios = log_ratio(outputs.logprobs, targets.old_logprobs)
    policy = surrogate(outputs.logprobs, log_ratios, targets)
    entropies = outputs.entropies if entropy_coefficient else outputs.entropies.detach()
    surrogate_loss = (weights * policy.losses).sum()
    entropy = (weights * entropies).sum()
    total = surrogate_loss - entropy_coefficient * entropy
    ratios = policy.log_ratios.exp()
    stats = {
        "policy_loss": surrogate_loss.detach(),
        "entropy": entropy.detach(),
        "approx_kl": (weights * k3(log_ratios.detach())).sum(),
        "binary_kl": (weights * binary_kl(outputs.logprobs.detach(), targets.old_logprobs)).sum(),
        "clip_fraction": (weights * policy.is_clipped).sum(),
        "clip_fraction_low": (weights * policy.clipped_low).sum(),
        "clip_fraction_high": (weights * policy.clipped_high).sum(),
        "ratio": (weights * ratios).sum(),
        "ratio_deviation": (weights * torch.expm1(policy.log_ratios).abs()).sum(),
        "ratio_squared": (weights * ratios.square()).sum(),
    }
    highest = torch.cat([ratios * (weights > 0), ratios.new_zeros(1)]).max()  # 0 where no token has a weight
    if kl is not None:
        stats["kl_reference"] = (weights * k3(log_ratio(targets.reference_logprobs, outputs.logprobs.detach()))).sum()
        term = kl.loss(outputs.logprobs, targets.reference_logprobs, log_ratios)
        total = total + kl.coefficient * (weights * term).sum()
    return Loss(total, weights.sum(), stats, {"ratio_max": highest})


@dataclass(frozen=True)
class ValueLoss:
    """The critic's loss, half the squared error. See `terms.clipped_value_loss`.

    Args:
        clip: how far a value may move from its old one before the loss is clipped; null is off.
        coefficient: the term's weight. The critic has its own parameters, clipping norm and learning rate, and AdamW
            divides by a gradient's scale, so it matters little.
    """

    clip: float | None = 0.5
    coefficient: float = 1.0

    def __post_init__(self) -> None:
        if self.clip is not None:
            remedy = "a value moves by a positive width; use e.g. 0.5, or null for no clip"
            require(self.clip > 0, "ValueLoss.clip", self.clip, remedy)
        require_coefficient("ValueLoss.coefficient", self.coefficient)


@dataclass(frozen=True)
class ObservationLoss:
    """The likelihood of what the environment answered, in the same pass: the policy learns what its actions do, also
    where all of them fail (ECHO, https://arxiv.org/abs/2605.24517).

    The loss gets -coefficient * mean(log pi) over all tokens that follow a response and that nobody sampled: the
    observations, with the chat template's tokens around them. Departs from the paper, which leaves out warnings. The
    observation after the last turn is among them, and where a prompt does not show the turn before, its observation
    follows that turn's response as in a prompt that shows it. One that `data.context_tokens` leaves no room for is left
    out.

    Args:
        coefficient: the term's weight.
    """

    coefficient: float = 0.1

    def __post_init__(self) -> None:
        require_coefficient("ObservationLoss.coefficient", self.coefficient)


def with_observation_loss(loss: Loss, targets: Targets, outputs: Outputs, term: ObservationLoss) -> Loss:
    """The loss plus that of observations, weighted by `observation_weights`."""
    weights = targets.observation_weights
    observed = -(weights * outputs.logprobs).sum()
    stats = {"observation_loss": observed.detach(), "observation_weight": weights.sum()}
    return loss._replace(total=loss.total + term.coefficient * observed, stats=loss.stats | stats)


def with_value_loss(policy: Loss, targets: Targets, outputs: Outputs, critic: ValueLoss) -> Loss:
    """The loss of the policy plus that of the critic, weighted by `value_weights`."""
    weights = targets.value_weights
    value = clipped_value_loss(outputs.values, targets.old_values, targets.value_targets, clip=critic.clip)
    total = (weights * value.losses).sum()
    stats = {
        "value_loss": total.detach(),
        "value_weight": weights.sum(),
        "value_clip_fraction": (weights * value.is_clipped).sum(),
    }
    return policy._replace(total=policy.total + critic.coefficient * total, stats=policy.stats | stats)
