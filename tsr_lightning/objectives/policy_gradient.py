"""A policy gradient composed of its parts; the named objectives are its presets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.errors import require
from tsr_lightning.objectives.aggregation import Aggregation, SequenceMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.checks import require_coefficient
from tsr_lightning.objectives.credit import apply_override, regroup, weighted, whitened
from tsr_lightning.objectives.estimators import AdvantageEstimator, GroupNormalised, ShapedTrajectory
from tsr_lightning.objectives.kl import KL
from tsr_lightning.objectives.losses import ValueLoss, policy_loss, with_value_loss
from tsr_lightning.objectives.searched import SearchedCredit, Unchanged
from tsr_lightning.objectives.shaping import RewardShaping
from tsr_lightning.objectives.supervised import Supervised, supervised_credit, with_supervised_loss
from tsr_lightning.objectives.surrogates import Clipped, Surrogate
from tsr_lightning.trajectory import Group, Origin, Trajectory


@dataclass(frozen=True)
class PolicyGradient(Objective):
    """Credit: shaped rewards, an advantage estimator, an aggregation. Loss: a surrogate, entropy and KL terms.

    Args:
        advantage: from the returns or the rewards of trajectories to the advantages of their tokens.
        surrogate: the loss of a token, given its importance ratio and advantage.
        aggregation: how the tokens of a step are averaged.
        searched: how trajectories that search selected are credited.
        shaping: steps from the environment's rewards to those that are credited, in order.
        whiten: whether advantages are scaled to mean 0 and variance 1 over the rollout.
        kl: the term that keeps the policy near the reference; null computes no reference.
        entropy_coefficient: the weight of the entropy bonus.
        critic: the critic's loss, where the estimator needs one.
        supervised: a supervised term on demonstrations beside the policy gradient; null takes no demonstrations.
    """

    advantage: AdvantageEstimator = field(default_factory=GroupNormalised)
    surrogate: Surrogate = field(default_factory=Clipped)
    aggregation: Aggregation = field(default_factory=SequenceMean)
    searched: SearchedCredit = field(default_factory=Unchanged)
    shaping: list[RewardShaping] = field(default_factory=list)
    whiten: bool = False
    kl: KL | None = None
    entropy_coefficient: float = 0.001
    critic: ValueLoss | None = None
    supervised: Supervised | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_coefficient(f"{name}.entropy_coefficient", self.entropy_coefficient)
        needed, given = self.advantage.needs.values, self.critic is not None
        estimator = type(self.advantage).__name__
        remedy = f"use ValueLoss, since {estimator} needs one" if needed else f"use null, since {estimator} needs none"
        require(needed == given, f"{name}.critic", self.critic, remedy)

    @property
    def needs(self) -> Needs:
        return replace(self.advantage.needs, reference=self.kl is not None)

    @property
    def minimum_compared(self) -> int:
        return self.advantage.minimum_compared

    @property
    def takes_demonstrations(self) -> bool:
        return self.supervised is not None

    @property
    def needs_demonstrations(self) -> bool:
        return self.supervised is not None

    def at(self, epoch: int) -> "PolicyGradient":
        return self if self.supervised is None else replace(self, supervised=self.supervised.at(epoch))

    def compares(self, origin: Origin) -> bool:
        return self.searched.compares(origin)

    def imitates(self, trajectory: Trajectory) -> bool:
        if self.supervised is not None and trajectory.origin is Origin.DEMONSTRATED:
            return True
        return self.searched.imitates(trajectory)

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        shaped = [
            [self._shaped(*pair) for pair in zip(group.trajectories, own, strict=True)]
            for group, own in zip(groups, estimates, strict=True)
        ]
        credits = [weighted(each, self.aggregation) for group in self.advantage(shaped) for each in group]
        if self.critic is None:
            credits = [replace(credit, value_weights=torch.zeros_like(credit.weights)) for credit in credits]
        if self.whiten:
            credits = whitened(credits, [each.compared for group in shaped for each in group])
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        credits = [*map(apply_override, credits, map(self.searched.override, trajectories))]
        if self.supervised is not None:
            credits = [
                supervised_credit(credit, trajectory, self.aggregation, self.supervised)
                for credit, trajectory in zip(credits, trajectories, strict=True)
            ]
        return regroup(credits, groups)

    def _shaped(self, trajectory: Trajectory, estimates: Estimates) -> ShapedTrajectory:
        rewards: Sequence[float] = [turn.reward for turn in trajectory.turns]
        for step in self.shaping:
            rewards = step(rewards, trajectory)
        penalties = torch.zeros_like(estimates.logprobs)
        if self.kl is not None:
            penalties = self.kl.reward_penalty(estimates.logprobs, estimates.reference_logprobs)
        return ShapedTrajectory(
            trajectory,
            estimates,
            rewards=tuple(rewards),
            kl_penalties=penalties,
            compared=self.searched.override(trajectory) is None,
        )

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        loss = policy_loss(targets, outputs, self.surrogate, self.kl, self.entropy_coefficient)
        if self.critic is not None:
            loss = with_value_loss(loss, targets, outputs, self.critic)
        if self.supervised is not None:
            loss = with_supervised_loss(loss, targets, outputs, self.supervised)
        return loss
