"""What the policy learns from trajectories that search chose. Plainly sampled ones are never touched."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from tsr_lightning.objectives.checks import require
from tsr_lightning.trajectory import Trajectory


class Imposed(NamedTuple):
    """Credit that stands in for the objective's own, for every token of a trajectory."""

    advantage: float
    weight: float  # times the aggregation's weight and share; 0 leaves the trajectory out of the policy's terms


class Searched(ABC):
    """What is done with the trajectories that search chose."""

    @abstractmethod
    def imposed(self, trajectory: Trajectory) -> Imposed | None:
        """None where the objective's own credit stands. Baselines and whitening are computed among those alone; the
        critic trains on all."""


@dataclass(frozen=True)
class AsSampled(Searched):
    """The objective is untouched: a searched trajectory is treated as if the policy had sampled it (the paper)."""

    def imposed(self, trajectory: Trajectory) -> None:
        return None


@dataclass(frozen=True)
class SuccessesOnly(Searched):
    """Searched trajectories that succeeded are imitated, with a positive advantage and the objective's clip; those that
    did not are left out. A failure under search is mostly good moves, so pushing it down does harm.

    Departs from the paper, which leaves the objective as it is. Related: self-imitation learning,
    https://arxiv.org/abs/1806.05635 (which weighs by how far the return exceeds the value; here every success counts
    the same).

    Args:
        advantage: The advantage of every token of a searched success.
    """

    advantage: float = 1.0

    def __post_init__(self) -> None:
        remedy = "successes are imitated with a positive advantage; use e.g. 1.0"
        require(0 < self.advantage < float("inf"), "searched.advantage", self.advantage, remedy)

    def imposed(self, trajectory: Trajectory) -> Imposed | None:
        if not trajectory.searched:
            return None
        return Imposed(self.advantage, 1.0) if trajectory.succeeded else Imposed(0.0, 0.0)
