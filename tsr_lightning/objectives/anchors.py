"""Turns compared with others that were taken in an equal state."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from tsr_lightning.errors import require, require_coefficient, require_fraction
from tsr_lightning.objectives.advantages import (
    Advantages,
    discounted_return,
    group_normalised,
    returns_to_go,
    state_relative,
)
from tsr_lightning.objectives.base import Needs
from tsr_lightning.objectives.estimators import (
    AdvantageEstimator,
    ShapedTrajectory,
    outcome_advantages,
    response_lengths,
)
from tsr_lightning.trajectory import Member


@dataclass(frozen=True)
class GroupInGroup(AdvantageEstimator):
    """Credit per turn without a critic: GiGPO, equation 8 of https://arxiv.org/abs/2505.10978.

        A = A_episode + step_weight * A_step

    A_episode is that of `GroupNormalised`. A_step is the discounted return from a turn on, relative to the turns of the
    group's compared trajectories that were taken in an equal state (`advantages.state_relative`). States are equal
    where the environment's `state_key` is, whatever budget is left; a trajectory that comes back to a state counts
    again.

    Departs from the authors' code, where the mean of A_episode is over the turns of all trajectories, so that long ones
    count more; the paper's equation 3 has the mean over trajectories.

    Args:
        step_weight: the weight of A_step, omega in the paper; with 0 it is `GroupNormalised`.
        gamma: the discount per turn in A_step; below 1 it prefers the shorter of two ways.
        divide_by_std: divide both parts by their standard deviations.
    """

    step_weight: float = 1.0
    gamma: float = 0.95
    divide_by_std: bool = False

    needs = Needs(state_keys=True)
    minimum_compared = 2

    def __post_init__(self) -> None:
        require_coefficient("GroupInGroup.step_weight", self.step_weight)
        require_fraction("GroupInGroup.gamma", self.gamma)

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        """Discounted, as the returns from a state on are: of two successes the sooner one is worth more."""
        if not self.step_weight:
            return sum(rewards)
        return discounted_return(response_lengths(member), rewards, per_turn=self.gamma)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        of_episodes = outcome_advantages(groups, partial(group_normalised, divide_by_std=self.divide_by_std))
        return [
            [
                episode._replace(advantages=episode.advantages + self.step_weight * step)
                for episode, step in zip(episodes, self._of_steps(group), strict=True)
            ]
            for episodes, group in zip(of_episodes, groups, strict=True)
        ]

    def _of_steps(self, group: Sequence[ShapedTrajectory]) -> list[Tensor]:
        """A_step of the tokens [N] of each trajectory; zeros where it is not compared."""
        compared = [each for each in group if each.compared]
        for each in compared:
            keys = each.member.state_keys
            remedy = "GroupInGroup needs the state of every turn; collect them with Driver(keep_state_keys=True)"
            require(len(keys) == len(each.lengths), "Trajectory.state_keys", keys, remedy)
        returns = chain.from_iterable(returns_to_go(each.turn_rewards, gamma=self.gamma) for each in compared)
        states = chain.from_iterable(each.member.state_keys for each in compared)
        advantages = iter(state_relative(list(returns), list(states), divide_by_std=self.divide_by_std).tolist())

        def of(shaped: ShapedTrajectory) -> Tensor:
            per_turn = [next(advantages) if shaped.compared else 0.0 for _ in shaped.lengths]
            return torch.tensor(per_turn).repeat_interleave(torch.tensor(shaped.lengths, dtype=torch.long))

        return [of(each) for each in group]
