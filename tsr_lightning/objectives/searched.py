"""Credits trajectories that search selected; the credit of plain samples without a tree stays."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Needs
from tsr_lightning.trajectory import Comparison, Group, Member, Origin


class CreditOverride(NamedTuple):
    """Replaces the objective's own credit of every token of a trajectory."""

    advantage: float
    weight: float  # factor of the aggregation's weight and normalizer; 0 leaves the trajectory out of the policy loss


LEFT_OUT = CreditOverride(advantage=0.0, weight=0.0)


def beside_comparisons(member: Member, imitation: float) -> CreditOverride | None:
    """The credit of a trajectory where responses are compared with one another: a searched success is imitated beside
    it, unless `imitation` is 0; None for what is compared."""
    if member.origin is Origin.SAMPLED:
        return None
    imitated = member.origin is Origin.SEARCHED and member.succeeded and imitation > 0
    return CreditOverride(imitation, 1.0) if imitated else LEFT_OUT


class SearchedCredit(ABC):
    """Credits the trajectories that search selected."""

    @abstractmethod
    def compares(self, origin: Origin) -> bool:
        """True if trajectories of this origin keep the objective's own credit. Baselines and whitening are computed
        among those alone, and the critic trains on those alone where a rollout has any."""

    @abstractmethod
    def override(self, member: Member) -> CreditOverride | None:
        """None where `compares` holds for the member's origin."""

    def needs_with(self, needs: Needs) -> Needs:
        """Adds what this credit needs to what an objective needs.

        Args:
            needs: what it needs for all else.
        """
        return needs

    @property
    def has_target(self) -> bool:
        """True if responses are compared by how far a distribution lies above the policy, whose size matters."""
        return False

    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        """Splits a group into what is credited: see `Objective.comparisons` and `Objective.minimum_compared`."""
        return [group]

    def imitates(self, member: Member) -> bool:
        """True if the override makes the member more likely."""
        override = self.override(member)
        return override is not None and override.advantage * override.weight > 0


@dataclass(frozen=True)
class Unchanged(SearchedCredit):
    """A searched trajectory is credited as if the policy had sampled it (the paper)."""

    def compares(self, origin: Origin) -> bool:
        return origin.is_sampled

    def override(self, member: Member) -> CreditOverride | None:
        return None if self.compares(member.origin) else LEFT_OUT


@dataclass(frozen=True)
class ImitateSuccesses(SearchedCredit):
    """Searched successes are imitated, with a positive advantage and the objective's clip; searched failures are left
    out. Most moves of a failure under search are good, so making them less likely does harm.

    Imitation needs no group: one search per instance is enough, and more instances then teach more than more searches
    of the same one.

    Departs from the paper, which leaves the objective as it is. Related: self-imitation learning,
    https://arxiv.org/abs/1806.05635 (which weights by how far the return exceeds the value; here every success counts
    the same). `ImitateEverySuccess` does the same with plain samples.

    Args:
        advantage: The advantage of every token of a searched success.
    """

    advantage: float = 1.0

    def __post_init__(self) -> None:
        remedy = "successes are imitated with a positive advantage; use e.g. 1.0"
        require(0 < self.advantage < float("inf"), "ImitateSuccesses.advantage", self.advantage, remedy)

    def compares(self, origin: Origin) -> bool:
        return origin is Origin.SAMPLED

    def override(self, member: Member) -> CreditOverride | None:
        if self.compares(member.origin):
            return None
        succeeded = member.origin is Origin.SEARCHED and member.succeeded
        return CreditOverride(self.advantage, 1.0) if succeeded else LEFT_OUT


@dataclass(frozen=True)
class ImitateEverySuccess(SearchedCredit):
    """Successes of any origin are imitated, plain samples and demonstrations too; nothing is compared (`RAFT`)."""

    def compares(self, origin: Origin) -> bool:
        return False

    def override(self, member: Member) -> CreditOverride | None:
        return CreditOverride(advantage=1.0, weight=1.0) if member.succeeded else LEFT_OUT
