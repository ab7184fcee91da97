"""The searches of an epoch's instances, and the groups of trajectories that come of them.

Under several ranks (`Ranks`) each runs its share of the groups, and gets those of all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Protocol, TypeVar

from tsr_lightning.costs import Costs
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.plan import PlanEntry
from tsr_lightning.search.progress import Progress, Report, unreported
from tsr_lightning.trajectory import Group

ItemT = TypeVar("ItemT")


class Ranks(Protocol):
    """This process among those of a run. `gather` is called on every rank."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def gather(self, own: Sequence[ItemT], shares: Sequence[Sequence[int]] | None = None) -> list[ItemT]:
        """The items of all ranks in their order.

        Args:
            own: of this rank.
            shares: of every rank, the indices of its items; every `world_size`-th from its rank on if not given.
        """
        ...


class SingleProcess:
    """A run of one process, which has every item already."""

    rank = 0
    world_size = 1

    def gather(self, own: Sequence[ItemT], shares: Sequence[Sequence[int]] | None = None) -> list[ItemT]:
        return list(own)


def shares_by_kind(kinds: Sequence[int], parts: int) -> list[list[int]]:
    """Shares items out such that each part has about as many of each kind: their indices, in ascending order."""
    order = sorted(range(len(kinds)), key=kinds.__getitem__)
    return [sorted(order[part::parts]) for part in range(parts)]


TRAINING_ROLLOUT = "rollout"  # the phase of a rollout that is trained on; an evaluation's is the name of its protocol


@dataclass(frozen=True, slots=True)
class Rollout:
    """The groups of an epoch and what they cost, of all ranks."""

    groups: list[Group]  # in the order of their instances
    costs: Costs
    skipped: int = 0  # draws of training instances that fell on a held-out state
    rounds: int = 1  # in which the instances were drawn
    with_signal: int = 0  # of the groups, where dynamic sampling counted them
    searches: int = 0  # begun or lost, those of a fallback included

    def __add__(self, other: "Rollout") -> "Rollout":
        return Rollout(
            self.groups + other.groups,
            self.costs + other.costs,
            self.skipped + other.skipped,
            self.rounds + other.rounds,
            self.with_signal + other.with_signal,
            self.searches + other.searches,
        )


def epoch_tasks(
    instances: Sequence[Instance | None],
    entries: Sequence[PlanEntry],
    key: Key,
    epoch: int,
    first: int = 0,
    first_member: int = 0,
) -> list[list[SearchTask]]:
    """The searches of an epoch, one list per group.

    Args:
        instances: of one round; None leaves its place out.
        entries: the plan's, for this epoch.
        key: the run's.
        epoch: names the draws.
        first: place of the first instance in the epoch.
        first_member: number of each group's first member.
    """
    strategies = [entry.strategy for entry in entries for _ in range(entry.count)]
    return [
        [
            SearchTask(seed, member, strategy, key.fold_in("epoch", epoch, "instance", place, "member", member), env)
            for member, strategy in enumerate(strategies, start=first_member)
        ]
        for place, instance in enumerate(instances, start=first)
        if instance is not None
        for env, seed in [instance]
    ]


def roll_out(
    driver: Driver,
    tasks: Sequence[Sequence[SearchTask]],
    report: Report,
    ranks: Ranks,
    max_lost: Callable[[int], int] = int,  # of so many searches; all of them if not given
    fallback: Sequence[Sequence[SearchTask]] = (),
) -> Rollout:
    """Runs this rank's groups, and gathers those of all ranks, in the order of `tasks`. Every rank has about as many of
    each environment, whose episodes may differ in length. A group of which all trajectories were lost is left out;
    where a rank loses more than `max_lost` of all searches, it gives up the rest of its share. A group that lost none
    and has no success gets the members by its list of `fallback`, where there are any."""
    before, wanted, begun = driver.costs, sum(map(len, tasks)), Progress(TRAINING_ROLLOUT)
    shares = shares_by_kind([members[0].env for members in tasks], ranks.world_size)
    share = shares[ranks.rank]
    own = run_groups(driver, [tasks[i] for i in share], report, begun, max_lost(wanted))
    further: list[Sequence[SearchTask]] = []
    if fallback:
        failed = [
            place
            for place, (i, group) in enumerate(zip(share, own, strict=True))
            if len(group.trajectories) == len(tasks[i]) and not any(t.succeeded for t in group.trajectories)
        ]
        further = [fallback[share[place]] for place in failed]
        costs, ended = driver.costs - before, sum(len(group.trajectories) for group in own)
        bearable = max_lost(wanted + sum(map(len, further))) - costs.trajectories_lost
        goes_on = replace(begun, done=ended, total=ended, costs=costs)
        searched = run_groups(driver, further, report, goes_on, max(0, bearable))
        for place, group in zip(failed, searched, strict=True):
            own[place] = replace(own[place], trajectories=own[place].trajectories + group.trajectories)
    groups = ranks.gather(own, shares)
    costs = sum(ranks.gather([driver.costs - before]), Costs())
    searches = wanted + sum(ranks.gather([sum(map(len, further))]))
    return Rollout([group for group in groups if group.trajectories], costs, searches=searches)


def run_groups(
    driver: Driver,
    tasks: Sequence[Sequence[SearchTask]],
    report: Report = unreported,
    begun: Progress | None = None,
    max_lost: int | None = None,
) -> list[Group]:
    """One group per list of tasks, which are all of one instance; without the trajectories that were lost."""
    survivors = iter(driver.survivors(list(chain.from_iterable(tasks)), report, begun, max_lost))
    return [
        Group(members[0].instance, tuple(t for t in islice(survivors, len(members)) if t is not None), members[0].env)
        for members in tasks
    ]
