"""Reward shaping: from the rewards of a trajectory's turns to those that it is credited for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tsr_lightning.trajectory import Trajectory


class RewardShaping(ABC):
    """One step of shaping; an objective applies a list of them in order."""

    @abstractmethod
    def __call__(self, rewards: Sequence[float], trajectory: Trajectory) -> list[float]:
        """The shaped rewards [T], from those so far [T]."""
