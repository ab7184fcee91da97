"""The group plan: which strategies build the trajectories of a group in each epoch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from tsr_lightning.errors import require
from tsr_lightning.search.scorers import Learner
from tsr_lightning.search.strategies import Beam, Sample, Strategy


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
    """The entries of each epoch; every instance of an epoch gets the same, and none where there are no members."""

    @abstractmethod
    def entries(self, epoch: int) -> list[PlanEntry]: ...

    def fallback(self, epoch: int) -> list[PlanEntry]:
        """Further members of a group of which no trajectory by `entries` succeeded."""
        return []

    @property
    def constant_from(self) -> int:
        """The first epoch from which on the entries no longer change."""
        return 0

    @property
    def strategies(self) -> list[Strategy]:
        """All strategies that the plan names for some epoch, those that build no member included."""
        epochs = range(self.constant_from + 1)
        return _distinct(entry.strategy for epoch in epochs for entry in self.entries(epoch) + self.fallback(epoch))

    @property
    def learners(self) -> list[Learner]:
        """What of its scorers learns from the rollouts, in the order of its strategies."""
        scorers = [strategy.traits.scored_by for strategy in self.strategies]
        found = {id(one): one for scorer in scorers if scorer is not None for one in scorer.learners}
        return list(found.values())

    def group_size(self, epoch: int) -> int:
        """Trajectories per instance, without those by `fallback`."""
        return sum(entry.count for entry in self.entries(epoch))


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
        require(self.group_size(0) >= 1, "Mixed.members", self.members, "give entries of 1 trajectory or more in all")

    def entries(self, epoch: int) -> list[PlanEntry]:
        return list(self.members)


@dataclass(frozen=True)
class SearchFailedGroups(Plan):
    """Plain samples of every instance, and searches of those alone where all samples fail.

    A group with successes and failures teaches by comparison, and one that fails as a whole teaches GRPO nothing: there
    a searched success can be imitated instead. So search ends by itself as the policy improves. `SearchFailures`
    decides by trajectory, and compares none.

    Args:
        strategy: searches.
        samples: plain trajectories per instance.
        searches: per instance of which all samples fail.
    """

    strategy: Strategy = field(default_factory=Beam)
    samples: int = 8
    searches: int = 1

    def __post_init__(self) -> None:
        require(self.samples >= 1, "SearchFailedGroups.samples", self.samples, "give 1 or more")
        remedy = "give 1 or more, or use Uniform with Sample"
        require(self.searches >= 1, "SearchFailedGroups.searches", self.searches, remedy)

    def entries(self, epoch: int) -> list[PlanEntry]:
        return [PlanEntry(Sample(), self.samples)]

    def fallback(self, epoch: int) -> list[PlanEntry]:
        return [PlanEntry(self.strategy, self.searches)]


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


@dataclass(frozen=True)
class NoRollout(Plan):
    """Nothing is rolled out: a phase that trains on the demonstrations of a file alone."""

    def entries(self, epoch: int) -> list[PlanEntry]:
        return []


@dataclass(frozen=True)
class Phases(Plan):
    """Plans one after the other, such as demonstrations, then a mixture, then samples alone.

    A plan counts its epochs from the beginning of its phase. The objective stays the same in all phases: one with a
    supervised term trains on demonstrations in the first and needs none in the last. Plans and lengths
    are two lists, so that one number moves the boundary of two phases; unlike the milestones of PyTorch's
    `SequentialLR`, which count from the start, each number is the length of its phase.

    Args:
        plans: the plan of each phase.
        epochs: how many epochs each plan but the last is followed; 0 skips it. The last goes on to the end.
    """

    plans: list[Plan]
    epochs: list[int]

    def __post_init__(self) -> None:
        require(len(self.plans) >= 1, "Phases.plans", self.plans, "give 1 plan or more")
        count = len(self.plans) - 1
        remedy = f"give {count} numbers of 0 or more, one for each of the {len(self.plans)} plans but the last"
        require(
            len(self.epochs) == count and all(each >= 0 for each in self.epochs), "Phases.epochs", self.epochs, remedy
        )

    def entries(self, epoch: int) -> list[PlanEntry]:
        plan, own_epoch = self._phase(epoch)
        return plan.entries(own_epoch)

    def fallback(self, epoch: int) -> list[PlanEntry]:
        plan, own_epoch = self._phase(epoch)
        return plan.fallback(own_epoch)

    def _phase(self, epoch: int) -> tuple[Plan, int]:
        """The plan that is followed in an epoch, and the number of the epoch in its phase."""
        starts = [0, *accumulate(self.epochs)]
        phase = max(i for i, start in enumerate(starts) if start <= epoch)
        return self.plans[phase], epoch - starts[phase]

    @property
    def constant_from(self) -> int:
        return sum(self.epochs) + self.plans[-1].constant_from

    @property
    def strategies(self) -> list[Strategy]:
        """The strategies of all phases, skipped ones included, so that 0 epochs of demonstrations are no other
        configuration."""
        return _distinct(strategy for plan in self.plans for strategy in plan.strategies)


def _distinct(strategies: Iterable[Strategy]) -> list[Strategy]:
    found: list[Strategy] = []
    for strategy in strategies:
        if strategy not in found:
            found.append(strategy)
    return found
