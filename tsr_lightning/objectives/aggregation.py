"""Averages over the tokens of an optimizer step: a weight per token.

The policy loss of a step is sum(weight * loss) / sum(normalizer) over its tokens. Dr. GRPO
(https://arxiv.org/abs/2503.20783) compares the three aggregations.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from tsr_lightning.errors import require


class Weighting(NamedTuple):
    """Weight and normalizer of every token of a trajectory."""

    weight: float  # factor of a token's loss
    normalizer: float  # what a token adds to the step's divisor


class Aggregation(ABC):
    """Weighs the tokens of an optimizer step."""

    @abstractmethod
    def weighting(self, tokens: int) -> Weighting:
        """The weighting of each token of a trajectory with `tokens` >= 1 trained tokens."""


@dataclass(frozen=True)
class TokenMean(Aggregation):
    """The mean over all tokens: long trajectories count more (DAPO, RAGEN)."""

    def weighting(self, tokens: int) -> Weighting:
        return Weighting(weight=1.0, normalizer=1.0)


@dataclass(frozen=True)
class SequenceMean(Aggregation):
    """The mean over trajectories of each one's mean over its tokens: every trajectory counts the same (GRPO)."""

    def weighting(self, tokens: int) -> Weighting:
        return Weighting(weight=1.0 / tokens, normalizer=1.0 / tokens)


@dataclass(frozen=True)
class Constant(Aggregation):
    """The mean over trajectories of each one's sum divided by a constant. Unlike the mean over its tokens, it does not
    make a long failure cheaper per token than a short one (Dr. GRPO).

    Args:
        tokens: The constant, usually the most tokens that a trajectory can have. It scales the loss.
    """

    tokens: int

    def __post_init__(self) -> None:
        remedy = "it divides the sum over a trajectory's tokens; use e.g. the episode's token limit"
        require(self.tokens >= 1, "Constant.tokens", self.tokens, remedy)

    def weighting(self, tokens: int) -> Weighting:
        return Weighting(weight=1.0 / self.tokens, normalizer=1.0 / tokens)
