"""Advantage estimators: what makes the tokens of a trajectory better or worse than expected.

T is the turns of a trajectory, N its trained tokens, C the compared trajectories of a group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.errors import require, require_fraction
from tsr_lightning.objectives.advantages import (
    Advantages,
    discounted_return,
    group_normalised,
    leave_one_out,
    mean_normalised,
    returns_to_go,
    token_rewards,
    uniform,
)
from tsr_lightning.objectives.base import Needs
from tsr_lightning.trajectory import Member, Origin


def response_lengths(member: Member) -> list[int]:
    """[T] tokens of each response."""
    return [len(turn.response) for turn in member.turns]


@dataclass(frozen=True, slots=True)
class ShapedTrajectory:
    """A trajectory, or a path of a search tree, with the rewards that it is credited for."""

    member: Member
    estimates: Estimates
    rewards: tuple[float, ...]  # [T] after reward shaping
    kl_penalties: Tensor  # [N] what the KL term takes off each token's reward; zeros without one
    compared: bool  # False where the credit is overridden: it then belongs to no baseline

    @property
    def lengths(self) -> list[int]:
        """[T] trained tokens of each turn."""
        return response_lengths(self.member)

    @property
    def episode_return(self) -> float:
        return sum(self.rewards) - float(self.kl_penalties.sum())

    @property
    def turn_rewards(self) -> list[float]:
        """[T] the rewards, with the KL penalties of each turn's tokens taken off."""
        parts = self.kl_penalties.split(self.lengths)
        return [reward - float(part.sum()) for reward, part in zip(self.rewards, parts, strict=True)]


class AdvantageEstimator(ABC):
    """Computes the advantages of a rollout's tokens from the rewards of its members."""

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def minimum_compared(self) -> int:
        """The fewest compared trajectories per group for which it is defined."""
        return 1

    @property
    def uses_rewards(self) -> bool:
        """False where it looks at success alone, so that no shaping of the rewards reaches it."""
        return True

    @property
    def divides_by_spread(self) -> bool:
        """True if it divides by the deviation of returns, of a group or the rollout, so that their size is lost."""
        return False

    @property
    def baseline_counts_tokens(self) -> bool:
        """True if longer trajectories count more in its baseline, which shifts values whose mean is 0."""
        return False

    def return_of(self, member: Member, rewards: Sequence[float]) -> float:
        """The return that it compares, given the shaped rewards, by whose spread groups are filtered."""
        return sum(rewards)

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        """The same as its advantages discount it: where these differ, equal returns have a signal."""
        return self.return_of(member, rewards)

    @abstractmethod
    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        """One result per trajectory, indexed as `groups[i][j]`. What it says of trajectories that are not compared is
        not used, but for a critic's value targets; their weight is 1."""


def outcome_advantages(
    groups: Sequence[Sequence[ShapedTrajectory]],
    advantages_of: Callable[[Tensor], Tensor],
    return_of: Callable[[ShapedTrajectory], float] = attrgetter("episode_return"),
) -> list[list[Advantages]]:
    """The tokens of a trajectory share one advantage, computed from the returns of its group.

    Args:
        groups: of a rollout.
        advantages_of: from the compared returns of a group, float64 [C], to their advantages [C].
        return_of: a trajectory.
    """

    def of(group: Sequence[ShapedTrajectory]) -> list[Advantages]:
        returns = torch.tensor([return_of(each) for each in group if each.compared], dtype=torch.float64)
        advantages = iter(advantages_of(returns).tolist())
        return [uniform(each.member.trained_tokens, next(advantages) if each.compared else 0.0) for each in group]

    return [of(group) for group in groups]


def separate_advantages(
    groups: Sequence[Sequence[ShapedTrajectory]], advantages_of: Callable[[ShapedTrajectory], Advantages]
) -> list[list[Advantages]]:
    """Each trajectory's advantages from itself alone."""
    return [[advantages_of(shaped) for shaped in group] for group in groups]


@dataclass(frozen=True)
class GroupNormalised(AdvantageEstimator):
    """A trajectory's return relative to its group: GRPO's advantage, https://arxiv.org/abs/2402.03300.

    Args:
        divide_by_std: divide by the standard deviation of the group's returns. Without it (Dr. GRPO,
            https://arxiv.org/abs/2503.20783), groups of little spread are not amplified.
    """

    divide_by_std: bool = True

    minimum_compared = 2

    @property
    def divides_by_spread(self) -> bool:
        return self.divide_by_std

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return outcome_advantages(groups, lambda returns: group_normalised(returns, divide_by_std=self.divide_by_std))


@dataclass(frozen=True)
class LeaveOneOut(AdvantageEstimator):
    """A trajectory's return minus the mean of the others of its group: RLOO's advantage, which no trajectory's own
    return biases. See `advantages.leave_one_out`."""

    minimum_compared = 2

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return outcome_advantages(groups, leave_one_out)


@dataclass(frozen=True)
class GreedyBaseline(AdvantageEstimator):
    """A trajectory's return minus that of the policy's greedy play of the instance: ReMax's advantage,
    https://arxiv.org/abs/2310.10505, for which one sample an instance is enough.

    The greedy trajectory is one of the group, by the strategy `Greedy`, and not trained on; a group that lost it is
    left out. Its rewards alone are the baseline, without a KL penalty, which needs samples.
    """

    needs = Needs(greedy=True)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        def of(group: Sequence[ShapedTrajectory]) -> list[Advantages]:
            baseline = next((sum(one.rewards) for one in group if one.member.origin is Origin.GREEDY), None)
            own = [uniform(each.member.trained_tokens, each.episode_return - (baseline or 0.0)) for each in group]
            return _left_out(group, own) if baseline is None else own

        return [of(group) for group in groups]


@dataclass(frozen=True)
class OptimalBaseline(AdvantageEstimator):
    """A trajectory's return minus the mean of its group's, weighted by their tokens: OPO's baseline,
    https://arxiv.org/abs/2505.23585.

    Of least variance where the gradient of a trajectory grows with its length, so under `TokenMean` and `Constant`;
    `SequenceMean` divides by the length, and there it has more variance than the plain mean where failures are long.
    """

    minimum_compared = 2
    baseline_counts_tokens = True

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        def baseline(group: Sequence[ShapedTrajectory]) -> float:
            compared = [(each.member.trained_tokens, each.episode_return) for each in group if each.compared]
            tokens = sum(length for length, _ in compared)
            return sum(length * value for length, value in compared) / tokens if tokens else 0.0

        return [
            [uniform(each.member.trained_tokens, each.episode_return - least) for each in group]
            for group, least in zip(groups, map(baseline, groups), strict=True)
        ]


@dataclass(frozen=True)
class ReturnToGo(AdvantageEstimator):
    """The discounted return from each token on, without a baseline: REINFORCE++, https://arxiv.org/abs/2501.03262.

    A turn's reward falls on its last token, and each token's KL penalty on itself. As in `TokenGAE` with lambda 1 and
    all values 0, the tokens of observations are no steps. To be used with `whiten`, which subtracts the rollout's mean.

    Args:
        gamma: the discount per token.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        require_fraction("ReturnToGo.gamma", self.gamma)

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        return discounted_return(response_lengths(member), rewards, per_token=self.gamma)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        def of(shaped: ShapedTrajectory) -> Advantages:
            rewards = token_rewards(shaped.lengths, shaped.rewards, shaped.kl_penalties)
            returns = torch.tensor(returns_to_go(rewards.tolist(), gamma=self.gamma))
            return Advantages(returns, torch.zeros_like(returns))

        return separate_advantages(groups, of)


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


_EPSILON = 1e-6  # up to this, returns count as equal


@dataclass(frozen=True)
class RolloutScaled(AdvantageEstimator):
    """Another estimator, on rewards divided by the standard deviation of the rollout's returns.

    With the default estimator, (R_i - mean of the group) / (std of the rollout + epsilon): the advantage of Lite PPO
    (https://arxiv.org/abs/2508.08221) and TRL's scale_rewards="batch". Unlike the group's own standard deviation, that
    of the rollout does not amplify groups of little spread. It is unbiased, over the compared trajectories of all
    groups that are trained on, KL penalties included.

    It is no step of reward shaping, because a step sees one trajectory. A critic learns the scaled returns; their scale
    changes from rollout to rollout, so with a critic `Scale` or `whiten` suit better.

    Args:
        estimator: what the scaled rewards are given to.
    """

    estimator: AdvantageEstimator = field(default_factory=lambda: GroupNormalised(divide_by_std=False))

    def __post_init__(self) -> None:
        remedy = "it looks at success alone, and no scaling of rewards reaches it; use it without RolloutScaled"
        require(self.estimator.uses_rewards, "RolloutScaled.estimator", self.estimator, remedy)

    @property
    def needs(self) -> Needs:
        return self.estimator.needs

    @property
    def minimum_compared(self) -> int:
        return self.estimator.minimum_compared

    divides_by_spread = True

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        return self.estimator.outcome_of(member, rewards)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        returns = [each.episode_return for group in groups for each in group if each.compared]
        std = float(torch.tensor(returns, dtype=torch.float64).std()) if len(returns) > 1 else 0.0
        scale = 1.0 / (std + _EPSILON) if std > _EPSILON else 1.0  # a critic would learn what 1 / epsilon scales
        return self.estimator([[_scaled(each, scale) for each in group] for group in groups])


def _scaled(shaped: ShapedTrajectory, scale: float) -> ShapedTrajectory:
    rewards = tuple(scale * reward for reward in shaped.rewards)
    return replace(shaped, rewards=rewards, kl_penalties=scale * shaped.kl_penalties)
