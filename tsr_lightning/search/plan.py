"""The group plan: which strategies build the trajectories of a group in each epoch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from tsr_lightning.errors import require
from tsr_lightning.search.strategies import Sample, Strategy


@dataclass(frozen=True)
class PlanEntry:
    """Members of a group that one strategy builds.

    Args:
        strategy: builds each member, in a search of its own.
        count: how many members.
    """

    strategy: Strategy
    count: int

    def __post_init__(self) -> None:
        require(self.count >= 0, "PlanEntry.count", self.count, "give 0 or more")


class Plan(ABC):
    """The entries of each epoch; every instance of an epoch gets the same, and groups have one size in all epochs."""

    @abstractmethod
    def entries(self, epoch: int) -> list[PlanEntry]: ...

    @property
    def constant_from(self) -> int:
        """The first epoch from which on the entries no longer change."""
        return 0

    @property
    def strategies(self) -> list[Strategy]:
        """All strategies that the plan uses in some epoch."""
        found: list[Strategy] = []
        for epoch in range(self.constant_from + 1):
            for entry in self.entries(epoch):
                if entry.strategy not in found:
                    found.append(entry.strategy)
        return found

    @property
    def group_size(self) -> int:
        return sum(entry.count for entry in self.entries(0))


@dataclass(frozen=True)
class Uniform(Plan):
    """All members of a group by one strategy.

    Args:
        strategy: builds the trajectories.
        count: trajectories per instance.
    """

    strategy: Strategy = field(default_factory=Sample)
    count: int = 8

    def __post_init__(self) -> None:
        require(self.count >= 1, "Uniform.count", self.count, "give 1 or more")

    def entries(self, epoch: int) -> list[PlanEntry]:
        return [PlanEntry(self.strategy, self.count)]


@dataclass(frozen=True)
class Mixed(Plan):
    """Several strategies in one group, such as plain and searched members side by side.

    Args:
        members: the entries of a group.
    """

    members: list[PlanEntry]

    def __post_init__(self) -> None:
        require(self.group_size >= 1, "Mixed.members", self.members, "give entries of 1 trajectory or more in all")

    def entries(self, epoch: int) -> list[PlanEntry]:
        return list(self.members)


@dataclass(frozen=True)
class Annealed(Plan):
    """Search that fades out: plain samples replace the searched members of a group linearly.

    The number of plain samples is rounded to the nearest integer except 1. Where searched members are only imitated, a
    single plain sample has nothing to be compared with, and would teach nothing for many epochs.

    Args:
        strategy: builds the searched members.
        count: trajectories per instance.
        epochs: the epoch from which on all members are plain samples.
    """

    strategy: Strategy
    count: int = 8
    epochs: int = 50

    def __post_init__(self) -> None:
        require(self.count >= 1, "Annealed.count", self.count, "give 1 or more")
        require(self.epochs >= 1, "Annealed.epochs", self.epochs, "give 1 or more")

    def entries(self, epoch: int) -> list[PlanEntry]:
        wanted = self.count * min(1.0, epoch / self.epochs)
        plain = self.count - round(self.count - wanted)
        if plain == 1 and self.count > 1:
            plain = 2 if wanted >= 1 else 0
        entries = [PlanEntry(self.strategy, self.count - plain), PlanEntry(Sample(), plain)]
        return [entry for entry in entries if entry.count]

    @property
    def constant_from(self) -> int:
        return self.epochs
