"""Schedules: weights that change over the epochs of a run. Pure functions of the epoch, so resuming needs nothing.

As in optax, a schedule is called: https://optax.readthedocs.io/en/latest/api/optimizer_schedules.html.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tsr_lightning.errors import require, require_coefficient


class Schedule(ABC):
    """A weight for every epoch."""

    @abstractmethod
    def __call__(self, epoch: int) -> float:
        """The weight in this epoch, counted from 0; never negative."""


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """Keeps the same weight in every epoch.

    Args:
        value: the weight.
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        require_coefficient("ConstantSchedule.value", self.value)

    def __call__(self, epoch: int) -> float:
        return self.value


@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """A straight line from `start` in epoch 0 to `end`, which stays from then on.

    Args:
        start: in epoch 0.
        end: after so many epochs, and in all later ones.
        epochs: from start to end.
    """

    start: float = 1.0
    end: float = 0.0
    epochs: int = 50

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, epoch: int) -> float:
        return self.start + (self.end - self.start) * min(1.0, epoch / self.epochs)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Half a cosine from `start` in epoch 0 to `end`, which stays from then on: https://arxiv.org/abs/1608.03983.

    Args:
        start: in epoch 0.
        end: after so many epochs, and in all later ones.
        epochs: from start to end.
    """

    start: float = 1.0
    end: float = 0.0
    epochs: int = 50

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, epoch: int) -> float:
        if epoch >= self.epochs:
            return self.end
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


def _check(schedule: LinearSchedule | CosineSchedule) -> None:
    name = type(schedule).__name__
    require_coefficient(f"{name}.start", schedule.start)
    require_coefficient(f"{name}.end", schedule.end)
    require(schedule.epochs >= 1, f"{name}.epochs", schedule.epochs, "give 1 or more, or use ConstantSchedule")
