"""Collects what an epoch trains on, in two steps: its rollout, and the credit of its trajectories.

Plain functions, which know no Trainer and no data module. Under several ranks each runs its share of the groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

import torch

from tsr_lightning.batching.duplicates import distinct_responses, summed
from tsr_lightning.batching.packing import share_out
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import ToEstimate, TrainingSequence, training_sequences, with_credit
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.costs import Costs
from tsr_lightning.objectives.base import Needs, Objective
from tsr_lightning.objectives.step_signal import outcomes_teach
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, ProgressFn, SearchTask
from tsr_lightning.search.plan import PlanEntry
from tsr_lightning.training.distributed import Ranks, shares_by_kind
from tsr_lightning.training.instances import Instance
from tsr_lightning.training.mismatch import computed, corrected, mismatch_metrics
from tsr_lightning.trajectory import Group

# The policy's, critic's and reference's estimates of trajectories
EstimateFn = Callable[[Sequence[ToEstimate]], list[Estimates]]


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
    progress: ProgressFn,
    ranks: Ranks,
    max_lost: Callable[[int], int] = int,  # of so many searches; all of them if not given
    fallback: Sequence[Sequence[SearchTask]] = (),
) -> Rollout:
    """Runs this rank's groups, and gathers those of all ranks, in the order of `tasks`. Every rank has about as many of
    each environment, whose episodes may differ in length. A group of which all trajectories were lost is left out;
    where a rank loses more than `max_lost` of all searches, it gives up the rest of its share. A group that lost none
    and has no success gets the members by its list of `fallback`, where there are any."""
    before, wanted = driver.costs, sum(map(len, tasks))
    shares = shares_by_kind([members[0].env for members in tasks], ranks.world_size)
    share = shares[ranks.rank]
    own = run_groups(driver, [tasks[i] for i in share], progress, max_lost(wanted))
    further: list[Sequence[SearchTask]] = []
    if fallback:
        failed = [
            place
            for place, (i, group) in enumerate(zip(share, own, strict=True))
            if len(group.trajectories) == len(tasks[i]) and not any(t.succeeded for t in group.trajectories)
        ]
        further = [fallback[share[place]] for place in failed]
        report = continued(progress, sum(len(group.trajectories) for group in own), driver.costs - before)
        bearable = max_lost(wanted + sum(map(len, further))) - (driver.costs - before).trajectories_lost
        searched = run_groups(driver, further, report, max(0, bearable))
        for place, group in zip(failed, searched, strict=True):
            own[place] = replace(own[place], trajectories=own[place].trajectories + group.trajectories)
    groups = ranks.gather(own, shares)
    costs = sum(ranks.gather([driver.costs - before]), Costs())
    searches = wanted + sum(ranks.gather([sum(map(len, further))]))
    return Rollout([group for group in groups if group.trajectories], costs, searches=searches)


def continued(progress: ProgressFn, ended: int, costs: Costs) -> ProgressFn:
    """The progress of further searches, after so many that have ended at these costs."""

    def report(done: int, total: int, further: Costs, spent: float) -> None:
        progress(ended + done, ended + total, costs + further, (ended + spent * total) / (ended + total))

    return report


def run_groups(
    driver: Driver, tasks: Sequence[Sequence[SearchTask]], progress: ProgressFn, max_lost: int | None = None
) -> list[Group]:
    """One group per list of tasks, which are all of one instance; without the trajectories that were lost."""
    survivors = iter(driver.survivors(list(chain.from_iterable(tasks)), progress, max_lost))
    return [
        Group(members[0].instance, tuple(t for t in islice(survivors, len(members)) if t is not None), members[0].env)
        for members in tasks
    ]


class Credited(NamedTuple):
    """What the updates of an epoch are made from, of all ranks."""

    sequences: list[TrainingSequence]  # those with any weight, with their part of the credit
    credits: list[list[Credit]]  # of each group: one per trajectory of its comparisons
    mismatch: dict[str, float]  # figures of engine and trainer


def credited_sequences(
    comparisons: Sequence[Sequence[Group]],
    objective: Objective,
    estimate: EstimateFn,
    ranks: Ranks,
    updates: Updates = Updates(),  # noqa: B008  (frozen)
    key: Key = Key(0),  # noqa: B008  (frozen)
) -> Credited:
    """The training sequences of groups, with credit; every rank estimates its share and returns all of them.

    Equal responses in a state are estimated once and trained once, with the sum of their weights; baselines count each.

    Args:
        comparisons: of each group, `Objective.comparisons`.
        objective: of the epoch.
        estimate: the policy's, critic's and reference's estimates.
        ranks: that share them.
        updates: the settings.
        key: of the epoch.
    """
    compared = list(chain.from_iterable(comparisons))
    if not compared:
        return Credited([], [[] for _ in comparisons], {})
    trees = [
        i if any(part.is_state for part in of_group) else None  # what is imitated shares prefixes with its tree
        for i, of_group in enumerate(comparisons)
        for _ in of_group
    ]
    trajectories, places = distinct_responses(compared)
    sequences = [training_sequences(trajectory) for trajectory in trajectories]
    of_trainer = computed(trajectories, objective.needs, updates, key)
    asked = [ToEstimate(*pair, i in of_trainer) for i, pair in enumerate(zip(trajectories, sequences, strict=True))]
    estimates = shared_estimates(asked, estimate, ranks, objective.needs)
    mismatch = mismatch_metrics(trajectories, estimates, of_trainer)
    credits = objective.credit(compared, [[estimates[place] for place in of_group] for of_group in places])

    def correct(credit: Credit, place: int) -> Credit:
        if not objective.compares(trajectories[place].origin):
            return credit  # what is imitated is imitated whoever would have sampled it
        return corrected(credit, trajectories[place], estimates[place], updates)

    teaching = outcomes_teach(compared, objective)
    credited = [
        sequence
        for tree, teaches, of_group, own in zip(trees, teaching, places, credits, strict=True)
        for place, copies in _by_place(of_group, own).items()
        for credit in summed(copies)
        for sequence in with_credit(
            sequences[place], estimates[place], correct(credit, place), tree=tree, trajectory=place, teaches=teaches
        )
    ]
    remaining = iter(credits)
    of_groups = [list(chain.from_iterable(islice(remaining, len(each)))) for each in comparisons]
    return Credited(credited, of_groups, mismatch)


def shared_estimates(asked: Sequence[ToEstimate], estimate: EstimateFn, ranks: Ranks, needs: Needs) -> list[Estimates]:
    """Of all trajectories, in their order. Each rank computes a share of about as many tokens as the others'; a prefix
    that trajectories share is computed on few of them."""
    if ranks.world_size == 1:
        return estimate(asked)
    passed = [one.sequences if one.computed or needs.reference else () for one in asked]
    shares = share_out([[sequence.inputs for sequence in sequences] for sequences in passed], ranks.world_size)
    own = [each.flat() for each in estimate([asked[i] for i in shares[ranks.rank]])]
    lengths = [3 * one.trajectory.trained_tokens + 1 for one in asked]
    of_rank = [sum(lengths[i] for i in share) for share in shares]
    gathered = ranks.gather_tensors(torch.cat(own) if own else torch.empty(0), of_rank)
    found = {
        i: Estimates.from_flat(numbers)
        for share, tensor in zip(shares, gathered, strict=True)
        for i, numbers in zip(share, tensor.split([lengths[i] for i in share]), strict=True)
    }
    return [found[i] for i in range(len(asked))]


def _by_place(places: Sequence[int], credits: Sequence[Credit]) -> dict[int, list[Credit]]:
    """The credits of equal trajectories together, in the order of the first of each."""
    found: dict[int, list[Credit]] = {}
    for place, credit in zip(places, credits, strict=True):
        found.setdefault(place, []).append(credit)
    return found
