"""The group plan: which strategies roll out the trajectories of one instance in an epoch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from tsr_lightning.errors import ConfigError
from tsr_lightning.search.strategies import Sample, Strategy


@dataclass(frozen=True)
class PlanEntry:
    """Some members of a group.

    Args:
        strategy: builds each of them, in a search of its own.
        count: how many.
    """

    strategy: Strategy
    count: int


class Plan(ABC):
    """Resolved once per epoch; every instance of the epoch gets the same shares."""

    @abstractmethod
    def entries(self, epoch: int) -> list[PlanEntry]: ...

    @property
    @abstractmethod
    def settled(self) -> int:
        """The first epoch from which on the shares stay as they are, for checks before the start."""

    @property
    @abstractmethod
    def strategies(self) -> list[Strategy]:
        """All that may be used, for checks before the start."""

    @property
    @abstractmethod
    def group_size(self) -> int: ...


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
        _positive(self.count)

    def entries(self, epoch: int) -> list[PlanEntry]:
        return [PlanEntry(self.strategy, self.count)]

    @property
    def settled(self) -> int:
        return 0

    @property
    def strategies(self) -> list[Strategy]:
        return [self.strategy]

    @property
    def group_size(self) -> int:
        return self.count


@dataclass(frozen=True)
class Mixed(Plan):
    """Several strategies in one group, such as plain and searched members side by side.

    Args:
        members: the shares of a group.
    """

    members: list[PlanEntry]

    def __post_init__(self) -> None:
        _positive(self.group_size)
        for entry in self.members:
            if entry.count < 0:
                raise ConfigError(f"data.plan.members has a share of {entry.count} trajectories: give 0 or more")

    def entries(self, epoch: int) -> list[PlanEntry]:
        return list(self.members)

    @property
    def settled(self) -> int:
        return 0

    @property
    def strategies(self) -> list[Strategy]:
        return [entry.strategy for entry in self.members]

    @property
    def group_size(self) -> int:
        return sum(entry.count for entry in self.members)


@dataclass(frozen=True)
class Annealed(Plan):
    """Search that fades out: the searched members of a group fall linearly to none, plain ones take their place.

    The number of plain ones is rounded to the nearest but one: a single plain sample among searched ones has nothing to
    be compared with where the searched ones are only imitated, and would teach nothing for epochs on end.

    Args:
        strategy: builds the searched members.
        count: trajectories per instance.
        epochs: the epoch from which on all members are plain samples.
    """

    strategy: Strategy
    count: int = 8
    epochs: int = 50

    def __post_init__(self) -> None:
        _positive(self.count)
        if self.epochs < 1:
            raise ConfigError(f"plan.epochs is {self.epochs}: give the epochs over which search fades out, 1 or more")

    def entries(self, epoch: int) -> list[PlanEntry]:
        wanted = self.count * min(1.0, epoch / self.epochs)
        plain = self.count - round(self.count - wanted)
        if plain == 1 and self.count > 1:
            plain = 2 if wanted >= 1 else 0
        entries = [PlanEntry(self.strategy, self.count - plain), PlanEntry(Sample(), plain)]
        return [entry for entry in entries if entry.count]

    @property
    def settled(self) -> int:
        return self.epochs

    @property
    def strategies(self) -> list[Strategy]:
        return [self.strategy, Sample()]

    @property
    def group_size(self) -> int:
        return self.count


def _positive(count: int) -> None:
    if count < 1:
        raise ConfigError(f"data.plan makes groups of {count} trajectories: give a count of 1 or more")
