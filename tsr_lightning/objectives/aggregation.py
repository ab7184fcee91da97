"""How the tokens of a step are averaged: nothing but a weight per token.

A step's loss is sum(weight * term) / sum(share) over its tokens. Dr. GRPO (https://arxiv.org/abs/2503.20783) compares
the three.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from tsr_lightning.objectives.checks import require


class Weighting(NamedTuple):
    """The same for every token of a trajectory."""

    weight: float  # what a token's term counts
    normalizer: float  # what a token adds to the step's divisor


class Aggregation(ABC):
    """How the tokens of an optimizer step are averaged."""

    @abstractmethod
    def weigh(self, tokens: int) -> Weighting:
        """For each token of a trajectory of so many trained tokens; at least one."""


@dataclass(frozen=True)
class TokenMean(Aggregation):
    """The mean over all tokens: a long trajectory counts more than a short one (DAPO, RAGEN)."""

    def weigh(self, tokens: int) -> Weighting:
        return Weighting(weight=1.0, normalizer=1.0)


@dataclass(frozen=True)
class SequenceMean(Aggregation):
    """The mean over trajectories of each one's mean over its tokens: every trajectory counts the same (GRPO)."""

    def weigh(self, tokens: int) -> Weighting:
        return Weighting(weight=1.0 / tokens, normalizer=1.0 / tokens)


@dataclass(frozen=True)
class Constant(Aggregation):
    """The mean over trajectories of each one's sum divided by a constant: unlike the mean over its tokens, it makes no
    long failure cheaper per token than a short one (Dr. GRPO).

    Args:
        tokens: The constant, usually the most tokens that a trajectory can have. It scales the loss.
    """

    tokens: int

    def __post_init__(self) -> None:
        remedy = "it divides the sum over a trajectory's tokens; use e.g. the episode's token budget"
        require(self.tokens >= 1, "aggregation.tokens", self.tokens, remedy)

    def weigh(self, tokens: int) -> Weighting:
        return Weighting(weight=1.0 / self.tokens, normalizer=1.0 / tokens)
