"""Importance weights for samples of an engine that gives other probabilities than the trainer.

An engine of another precision, other kernels or older weights samples from a policy mu that is not quite the trainer's
pi_old. Weights near rho = pi_old / mu make the policy gradient that of pi_old again. They are constants of a rollout:
the ratio pi / pi_old and its clip are left to the objective.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tsr_lightning.errors import require

Level = Literal["token", "turn", "trajectory"]

_LIMIT = 20.0  # of the log of a ratio, as in verl: its exponential is finite


class Correction(ABC):
    """Turns importance ratios into weights of the policy loss."""

    @abstractmethod
    def __call__(self, log_ratios: Tensor, turn_lengths: Sequence[int]) -> Tensor:
        """The weight of each token in the policy loss.

        Args:
            log_ratios: [N] log(pi_old / mu) of the tokens of a trajectory, turn after turn.
            turn_lengths: [T] tokens of each turn.
        """


@dataclass(frozen=True)
class TruncatedImportance(Correction):
    """min(rho, cap): truncated importance sampling, TIS (https://fengyao.notion.site/off-policy-rl; verl's rollout_is;
    TRL's token_truncate and sequence_truncate).

    Args:
        level: token: a ratio for each token, biased and of little variance. trajectory: the product over all tokens of
            the trajectory, without bias but for the cap, and of more variance the longer it is. turn: between them.
            A turn of a search tree is corrected alone, so that there trajectory is turn.
        cap: the largest weight.
    """

    level: Level = "token"
    cap: float = 2.0

    def __post_init__(self) -> None:
        remedy = "it bounds ratios near 1; use e.g. 2.0"
        require(1 <= self.cap < float("inf"), "TruncatedImportance.cap", self.cap, remedy)

    def __call__(self, log_ratios: Tensor, turn_lengths: Sequence[int]) -> Tensor:
        return importance_ratios(log_ratios, turn_lengths, self.level).clamp(max=self.cap)


@dataclass(frozen=True)
class MaskedImportance(Correction):
    """rho where it lies between two bounds, and else 0: what engine and trainer disagree on teaches nothing.

    By token with 0.5 and 5.0 it is IcePop (https://arxiv.org/abs/2510.18855); with 0 and a cap it is masked importance
    sampling, MIS (TRL's token_mask and sequence_mask). What is masked stays in the normalizers, as in both.

    Args:
        level: as in `TruncatedImportance`.
        low: ratios below are masked.
        high: and ratios above.
    """

    level: Level = "token"
    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        remedy = "a ratio of 1 has to lie within; use e.g. 0.5, or 0 for no lower bound"
        require(0 <= self.low <= 1, "MaskedImportance.low", self.low, remedy)
        remedy = "a ratio of 1 has to lie within; use e.g. 5.0"
        require(1 <= self.high < float("inf"), "MaskedImportance.high", self.high, remedy)

    def __call__(self, log_ratios: Tensor, turn_lengths: Sequence[int]) -> Tensor:
        ratios = importance_ratios(log_ratios, turn_lengths, self.level)
        return torch.where((ratios >= self.low) & (ratios <= self.high), ratios, torch.zeros_like(ratios))


def importance_ratios(log_ratios: Tensor, turn_lengths: Sequence[int], level: Level) -> Tensor:
    """[N] rho of each token: its own, or the product over its turn or trajectory."""
    lengths = {"token": [1] * len(log_ratios), "turn": list(turn_lengths), "trajectory": [len(log_ratios)]}[level]
    sums = torch.stack([part.sum() for part in log_ratios.split(lengths)]) if len(log_ratios) else log_ratios
    return sums.clamp(-_LIMIT, _LIMIT).exp().repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
