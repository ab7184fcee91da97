"""Advantage estimators and objectives with one mistake each, as a user would name them by module."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tsr_lightning.objectives import GRPO, SFT, AdvantageEstimator, Needs, ShapedTrajectory, outcome_advantages
from tsr_lightning.objectives.advantages import Advantages, uniform

Groups = Sequence[Sequence[ShapedTrajectory]]


@dataclass(frozen=True)
class ForgetsMinimum(AdvantageEstimator):
    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return outcome_advantages(groups, lambda returns: returns - returns.median())


@dataclass(frozen=True)
class DividesByTheSpreadOfOne(AdvantageEstimator):
    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return outcome_advantages(groups, lambda returns: (returns - returns.mean()) / returns.std())


@dataclass(frozen=True)
class ForgetsValues(AdvantageEstimator):
    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return [[self.of(shaped) for shaped in group] for group in groups]

    def of(self, shaped: ShapedTrajectory) -> Advantages:
        advantages = shaped.episode_return - shaped.estimates.values
        return Advantages(advantages, torch.zeros_like(advantages))


@dataclass(frozen=True)
class ForgetsLogprobs(AdvantageEstimator):
    """A bonus for what was unlikely."""

    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return [[self.of(shaped) for shaped in group] for group in groups]

    def of(self, shaped: ShapedTrajectory) -> Advantages:
        advantages = shaped.episode_return - shaped.estimates.logprobs
        return Advantages(advantages, torch.zeros_like(advantages))


@dataclass(frozen=True)
class ForgetsStateKeys(AdvantageEstimator):
    minimum_compared = 2

    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        first = groups[0][0].member.state_keys[0]
        return outcome_advantages(groups, lambda returns: (returns - returns.mean()) * len(first))


@dataclass(frozen=True)
class LooksAtSuccess(AdvantageEstimator):
    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return outcome_advantages(groups, lambda returns: returns, lambda shaped: float(shaped.member.succeeded))


@dataclass(frozen=True)
class ReturnsRewards(LooksAtSuccess):
    """Its groups of equal rewards would count as without signal."""

    uses_rewards = False


@dataclass(frozen=True)
class LooksAtRewards(AdvantageEstimator):
    uses_rewards = False

    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return outcome_advantages(groups, lambda returns: returns)


@dataclass(frozen=True)
class OneForEachTurn(AdvantageEstimator):
    def __call__(self, groups: Groups) -> list[list[Advantages]]:
        return [[uniform(len(shaped.lengths), shaped.episode_return) for shaped in group] for group in groups]


@dataclass(frozen=True)
class LossOfReference(GRPO):
    def loss(self, targets: Any, outputs: Any) -> Any:
        loss = super().loss(targets, outputs)
        return loss._replace(total=loss.total + (outputs.logprobs - targets.reference_logprobs).sum())


@dataclass(frozen=True)
class LossOfRatios(SFT):
    needs = Needs(logprobs=False)

    def loss(self, targets: Any, outputs: Any) -> Any:
        loss = super().loss(targets, outputs)
        return loss._replace(total=loss.total + (outputs.logprobs - targets.old_logprobs).sum())


@dataclass(frozen=True)
class LossTypo(GRPO):
    def loss(self, targets: Any, outputs: Any) -> Any:
        return targets.advantage
