"""Proximal policy optimisation on multi-turn trajectories."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.estimators import AdvantageEstimator
from tsr_lightning.objectives.gae import TokenGAE
from tsr_lightning.objectives.losses import ValueLoss
from tsr_lightning.objectives.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class PPO(PolicyGradient):
    """PPO (https://arxiv.org/abs/1707.06347) with generalised advantage estimation over tokens, turns or both.

    Departs from the paper: two clip widths (DAPO), a clipped value loss (the authors' code), advantages whitened over
    the whole rollout (not per minibatch, so that the split has no effect).
    """

    advantage: AdvantageEstimator = field(default_factory=TokenGAE)
    aggregation: Aggregation = field(default_factory=TokenMean)
    whiten: bool = True
    critic: ValueLoss | None = field(default_factory=ValueLoss)
