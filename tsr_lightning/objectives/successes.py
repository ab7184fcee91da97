"""Advantage estimators for which the return of a trajectory is its success, 1 or 0, whatever its rewards."""

from collections.abc import Sequence
from dataclasses import dataclass

from tsr_lightning.objectives.advantages import Advantages, mean_normalised
from tsr_lightning.objectives.estimators import AdvantageEstimator, ShapedTrajectory, outcome_advantages
from tsr_lightning.trajectory import Member


@dataclass(frozen=True)
class SuccessRelative(AdvantageEstimator):
    """A trajectory's success relative to the share of successes in its group: MaxRL, https://arxiv.org/abs/2602.02710.
    See `advantages.mean_normalised`."""

    minimum_compared = 2
    uses_rewards = False

    def return_of(self, member: Member, rewards: Sequence[float]) -> float:
        return float(member.succeeded)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return outcome_advantages(groups, mean_normalised, _succeeded)


@dataclass(frozen=True)
class SuccessSign(AdvantageEstimator):
    """1 for a success and -1 for a failure, without a baseline; groups that all succeeded or all failed are left out:
    REINFORCE-Rej, https://arxiv.org/abs/2504.11343."""

    minimum_compared = 2  # a group of one has all succeeded or all failed
    uses_rewards = False

    def return_of(self, member: Member, rewards: Sequence[float]) -> float:
        return float(member.succeeded)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        signs = outcome_advantages(groups, lambda successes: 2 * successes - 1, _succeeded)
        return [own if _is_mixed(group) else _left_out(group, own) for group, own in zip(groups, signs, strict=True)]


def _succeeded(shaped: ShapedTrajectory) -> float:
    return float(shaped.member.succeeded)


def _is_mixed(group: Sequence[ShapedTrajectory]) -> bool:
    return len({_succeeded(each) for each in group if each.compared}) == 2


def _left_out(group: Sequence[ShapedTrajectory], advantages: Sequence[Advantages]) -> list[Advantages]:
    return [
        each._replace(weight=0.0) if shaped.compared else each for shaped, each in zip(group, advantages, strict=True)
    ]
