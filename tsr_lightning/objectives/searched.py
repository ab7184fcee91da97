"""What the policy learns from trajectories that search chose. Plainly sampled ones are never touched."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from tsr_lightning.objectives.checks import require
from tsr_lightning.trajectory import Origin, Trajectory


class CreditOverride(NamedTuple):
    """Credit that stands in for the objective's own, for every token of a trajectory."""

    advantage: float
    weight: float  # times the aggregation's weight and share; 0 leaves the trajectory out of the policy's terms


LEFT_OUT = CreditOverride(advantage=0.0, weight=0.0)


class SearchedCredit(ABC):
    """What is done with the trajectories that search chose."""

    @abstractmethod
    def compares(self, origin: Origin) -> bool:
        """Whether the objective's own credit stands for trajectories of this origin. Baselines and whitening are
        computed among those alone; the critic trains on all."""

    @abstractmethod
    def imposed(self, trajectory: Trajectory) -> CreditOverride | None:
        """None where the objective's own credit stands, which is where `compares` says so."""

    def imitates(self, trajectory: Trajectory) -> bool:
        """Whether it is made more likely, whatever the others returned."""
        imposed = self.imposed(trajectory)
        return imposed is not None and imposed.advantage * imposed.weight > 0


@dataclass(frozen=True)
class Unchanged(SearchedCredit):
    """The objective is untouched: a searched trajectory is treated as if the policy had sampled it (the paper)."""

    def compares(self, origin: Origin) -> bool:
        return origin is not Origin.DEMONSTRATED

    def imposed(self, trajectory: Trajectory) -> CreditOverride | None:
        return None if self.compares(trajectory.origin) else LEFT_OUT


@dataclass(frozen=True)
class ImitateSuccesses(SearchedCredit):
    """Searched trajectories that succeeded are imitated, with a positive advantage and the objective's clip; those that
    did not are left out. A failure under search is mostly good moves, so pushing it down does harm.

    Imitation needs no group: one search per instance is enough, and more instances then teach more than more searches
    of the same one.

    Departs from the paper, which leaves the objective as it is. Related: self-imitation learning,
    https://arxiv.org/abs/1806.05635 (which weighs by how far the return exceeds the value; here every success counts
    the same). The same for plain samples is the objective `RAFT`.

    Args:
        advantage: The advantage of every token of a searched success.
    """

    advantage: float = 1.0

    def __post_init__(self) -> None:
        remedy = "successes are imitated with a positive advantage; use e.g. 1.0"
        require(0 < self.advantage < float("inf"), "searched.advantage", self.advantage, remedy)

    def compares(self, origin: Origin) -> bool:
        return origin is Origin.SAMPLED

    def imposed(self, trajectory: Trajectory) -> CreditOverride | None:
        if self.compares(trajectory.origin):
            return None
        succeeded = trajectory.origin is Origin.SEARCHED and trajectory.succeeded
        return CreditOverride(self.advantage, 1.0) if succeeded else LEFT_OUT
