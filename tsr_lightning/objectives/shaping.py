"""Reward shaping: from the rewards of a trajectory's turns to those that it is credited for.

A step sees one trajectory, so that returns can be compared before credit; normalisation needs the whole rollout, and is
an advantage estimator: `RolloutScaled`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tsr_lightning.errors import require, require_fraction
from tsr_lightning.trajectory import Member


class RewardShaping(ABC):
    """One step of shaping; an objective applies a list of them in order."""

    @abstractmethod
    def __call__(self, rewards: Sequence[float], member: Member) -> list[float]:
        """The shaped rewards [T], from those so far [T]."""


@dataclass(frozen=True)
class ReturnAtEnd(RewardShaping):
    """The last turn earns the whole return and the others nothing, as in the code released with the TSR paper.

    The return stays the same, so an estimator that compares whole returns does not notice. Credit turn by turn does
    (GAE, `ReturnToGo`, GiGPO's states), at a discount and a lambda of 1 too: a turn is credited for rewards before it.
    """

    def __call__(self, rewards: Sequence[float], member: Member) -> list[float]:
        return [*[0.0] * (len(rewards) - 1), sum(rewards)]


@dataclass(frozen=True)
class Discount(RewardShaping):
    """r_t <- gamma^t r_t, where t counts turns from 0: the return becomes the discounted one of the first turn.

    For estimators that compare returns. GAE discounts by itself: with `TurnGAE.gamma` below 1 too, a reward would be
    discounted twice.

    Args:
        gamma: the discount per turn.
    """

    gamma: float

    def __post_init__(self) -> None:
        require_fraction("Discount.gamma", self.gamma)

    def __call__(self, rewards: Sequence[float], member: Member) -> list[float]:
        return [self.gamma**t * reward for t, reward in enumerate(rewards)]


@dataclass(frozen=True)
class Scale(RewardShaping):
    """r_t <- factor r_t.

    Args:
        factor: such as 0.1 where returns of about 10 would make a critic's errors large.
    """

    factor: float

    def __post_init__(self) -> None:
        remedy = "rewards are scaled by a positive number; use e.g. 0.1"
        require(0 < self.factor < float("inf"), "Scale.factor", self.factor, remedy)

    def __call__(self, rewards: Sequence[float], member: Member) -> list[float]:
        return [self.factor * reward for reward in rewards]


@dataclass(frozen=True)
class OverlongPenalty(RewardShaping):
    """DAPO's soft overlong punishment, equation 13 of https://arxiv.org/abs/2503.14476, on the last turn's reward.

        penalty * min(max((limit - buffer - length) / buffer, -1), 0)

    The length counts the sampled tokens of all turns. Up to limit - buffer nothing is taken off; from there the
    penalty grows linearly to its whole at the limit, and no further. The floor is the paper's; verl's code has none,
    since no response of its is longer than the limit.

    Args:
        limit: Lmax, the longest trajectory in sampled tokens, usually data.episode_tokens.
        buffer: Lcache, the tokens before the limit over which the penalty grows.
        penalty: what is taken off at the limit; 1.0 in the paper, where a success returns 1.
    """

    limit: int
    buffer: int
    penalty: float = 1.0

    def __post_init__(self) -> None:
        require(self.limit >= 1, "OverlongPenalty.limit", self.limit, "use the episode's token limit, e.g. 512")
        remedy = f"use at least 1 and at most the limit of {self.limit} tokens, e.g. a fifth of it"
        require(1 <= self.buffer <= self.limit, "OverlongPenalty.buffer", self.buffer, remedy)
        remedy = "it is taken off, so use a positive number, e.g. 1.0"
        require(0 < self.penalty < float("inf"), "OverlongPenalty.penalty", self.penalty, remedy)

    def __call__(self, rewards: Sequence[float], member: Member) -> list[float]:
        excess = member.trained_tokens - (self.limit - self.buffer)
        share = min(max(excess / self.buffer, 0.0), 1.0)
        return [*rewards[:-1], rewards[-1] - self.penalty * share]
