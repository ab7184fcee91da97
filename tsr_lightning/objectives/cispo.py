"""Clipped importance-sampling weights."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.surrogates import ClippedWeight, Surrogate


@dataclass(frozen=True)
class CISPO(PolicyGradient):
    """CISPO (MiniMax-M1, https://arxiv.org/abs/2506.13585): REINFORCE with a group's baseline and a clipped importance
    ratio as a weight.

        loss = -sg[min(r, 1 + high)] A log pi,   mean over all tokens

    No token loses its gradient to the clip, so that rare tokens, whose ratios move most, are learned from in every
    update of a rollout. In the first, where the ratio is 1, its gradient is GRPO's.

    Departs from the paper: high is GRPO's, since a bound of 2 or 5 made small policies collapse
    (docs/objectives/cispo.md); the length penalty and dynamic sampling that the paper takes over from DAPO are parts of
    their own.
    """

    surrogate: Surrogate = field(default_factory=ClippedWeight)
    aggregation: Aggregation = field(default_factory=TokenMean)
