"""Advantage estimators that look at the success of trajectories, 1 or 0, and not at their rewards."""

from collections.abc import Sequence
from dataclasses import dataclass

from tsr_lightning.objectives.advantages import Advantages, mean_normalised
from tsr_lightning.objectives.estimators import AdvantageEstimator, ShapedTrajectory, outcome_advantages
from tsr_lightning.trajectory import Trajectory


@dataclass(frozen=True)
class SuccessRelative(AdvantageEstimator):
    """A trajectory's success relative to the share of successes in its group: MaxRL, https://arxiv.org/abs/2602.02710.
    See `advantages.mean_normalised`."""

    minimum_compared = 2
    uses_rewards = False

    def outcome(self, trajectory: Trajectory) -> float:
        return float(trajectory.succeeded)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return outcome_advantages(groups, mean_normalised, succeeded)


@dataclass(frozen=True)
class SuccessSign(AdvantageEstimator):
    """1 for a success and -1 for a failure, without a baseline; groups that all succeeded or all failed are left out:
    REINFORCE-Rej, https://arxiv.org/abs/2504.11343."""

    minimum_compared = 2  # a group of one has all succeeded or all failed
    uses_rewards = False

    def outcome(self, trajectory: Trajectory) -> float:
        return float(trajectory.succeeded)

    def includes(self, group: Sequence[ShapedTrajectory]) -> bool:
        return len({succeeded(each) for each in group if each.compared}) == 2

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return outcome_advantages(groups, lambda successes: 2 * successes - 1, succeeded)


def succeeded(shaped: ShapedTrajectory) -> float:
    return float(shaped.trajectory.succeeded)
