"""Compares the curves of a study: ends, equal budgets, time to a threshold. Numbers, no texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean, median, stdev

from tsr_lightning.statistics import Estimate, mean_difference, mean_rate
from tsr_lightning.studies.report.curves import BUDGETS, Curve, Floats, matrix, paired
from tsr_lightning.studies.report.load import ArmResults, StudyResults, are_alike
from tsr_lightning.studies.settings import differing_keys


@dataclass(frozen=True)
class End:
    """An arm's success at its start and its end under one protocol."""

    study: str
    arm: str
    protocol: str
    environment: str  # of a mixture, whose instances alone are counted; empty: all instances
    seeds: int
    shared_seeds: int  # that its baseline has too; 0 without a baseline
    start: float | None  # None where it was not measured, and then no gain either
    end: Estimate
    spread: float | None  # standard deviation of the seeds' ends; None of one seed
    gain: Estimate | None
    baseline: str | None
    against: Estimate | None  # end minus the baseline's end, paired by seed and instance


@dataclass(frozen=True)
class AtBudget:
    """An arm's success when a budget was spent, interpolated on its curves."""

    study: str
    arm: str
    protocol: str
    environment: str  # of a mixture, whose instances alone are counted; empty: all instances
    budget: str  # a key of BUDGETS
    common: float  # the least that any run of its set spent in all
    success: float  # at `common`
    baseline: str | None
    shared: float | None  # the least that any run of the arm or its baseline spent in all
    against: Estimate | None  # minus the baseline, both at `shared`


@dataclass(frozen=True)
class Reached:
    """What an arm spent until its success rate reached a threshold. A run that did not counts as endless."""

    study: str
    arm: str
    protocol: str
    environment: str  # of a mixture, whose instances alone are counted; empty: all instances
    threshold: float
    seeds: int
    reached: int  # of the seeds
    spent: Mapping[str, float]  # median over the seeds by budget; infinite where most did not reach it


@dataclass(frozen=True)
class Pair:
    """One arm minus another under one protocol, after all epochs and when both had spent as much."""

    study: str
    arm: str
    other: str
    protocol: str
    environment: str  # of a mixture, whose instances alone are counted; empty: all instances
    seeds: int  # that both have
    end: Estimate  # paired by seed and instance
    equal: Mapping[str, Estimate]  # by budget, where both spend it and were evaluated before
    spent: Mapping[str, float]  # by budget, the least that any run of the two spent in all


@dataclass(frozen=True)
class InstanceSet:
    """Arms whose curves can be compared: those of one study that play the same held-out instances by one protocol.

    Args:
        study: its name.
        protocol: of evaluation.
        label: what the arms have in common that others of the study have not; empty where it is the only set.
        curves: of each arm, by its name.
        environments: of a mixture, by their place in `data.env`; empty where there is but one.
        environment: of a mixture, where the curves are of its instances alone; empty: all instances.
    """

    study: str
    protocol: str
    label: str
    curves: Mapping[str, Sequence[Curve]]
    environments: Mapping[int, str] = field(default_factory=dict)
    environment: str = ""


def instance_sets(study: StudyResults) -> list[InstanceSet]:
    """Groups a study's arms by protocol, by their task and by the instances that they play."""
    found = []
    protocols = dict.fromkeys(protocol for arm in study.arms for protocol in arm.protocols)
    for protocol in protocols:
        sets: list[list[ArmResults]] = []
        for arm in study.arms:
            if arm.curves(protocol):
                own = next((one for one in sets if _play_the_same(study, arm, one[0])), None)
                if own is None:
                    sets.append([arm])
                else:
                    own.append(arm)
        for label, members in zip(_labels(sets, study.arms), sets, strict=True):
            by_arm = {arm.arm: arm.curves(protocol) for arm in members}
            found.append(InstanceSet(study.name, protocol, label, by_arm, members[0].environments))
    return found


def other_tasks(study: StudyResults) -> dict[str, list[str]]:
    """Returns the arms that would be compared with another one on the same seeds of instances, but for settings of the
    environment: the names of those arms by such settings."""
    arms = {arm.arm: arm for arm in study.arms}
    found: dict[str, list[str]] = {}
    for name, other in dict.fromkeys([*study.baselines.items(), *study.pairs]):
        if name in arms and other in arms and are_alike(arms[name].held_out, arms[other].held_out):
            keys = differing_keys([arms[one].task(study.same_task) for one in (name, other)])
            if keys and name not in found.setdefault(keys, []):
                found[keys].append(name)
    return found


def _play_the_same(study: StudyResults, arm: ArmResults, other: ArmResults) -> bool:
    """Whether they play the same instances of the same task: equal seeds alone are other levels in another world."""
    return arm.task(study.same_task) == other.task(study.same_task) and are_alike(arm.held_out, other.held_out)


def by_environment(group: InstanceSet) -> Iterator[InstanceSet]:
    """Yields a set for each environment of a mixture that is evaluated; entries of one name are one, as in a run's
    figures."""
    for name in dict.fromkeys(group.environments.values()):
        places = [place for place, other in group.environments.items() if other == name]
        curves = {arm: [one.within(places) for one in own] for arm, own in group.curves.items()}
        if all(one.instances for own in curves.values() for one in own):
            yield replace(group, environment=name, curves=curves)


def all_sets(study: StudyResults) -> list[InstanceSet]:
    """Returns the sets of a study, each followed by those of its environments."""
    return [one for group in instance_sets(study) for one in (group, *by_environment(group))]


def _labels(sets: Sequence[Sequence[ArmResults]], arms: Sequence[ArmResults]) -> list[str]:
    """Returns for each set the points that all its members from axes have, and not all arms from axes; a number where
    there are none, or another set has the same. Empty for the only set."""
    if len(sets) < 2:
        return [""] * len(sets)
    points = [sorted(_shared_points(members) - _shared_points(arms)) for members in sets]
    named = [", ".join(f"{axis} {point}" for axis, point in own) for own in points]
    return [
        name if name and named.count(name) == 1 else ", ".join(filter(None, [name, f"instances {number}"]))
        for number, name in enumerate(named, start=1)
    ]


def _shared_points(arms: Sequence[ArmResults]) -> set[tuple[str, str]]:
    several = [set(arm.points.items()) for arm in arms if arm.points]
    return set.intersection(*several) if several else set()


def ends(study: StudyResults, group: InstanceSet) -> Iterator[End]:
    """Yields the start and end of every arm of a set."""
    for arm, curves in group.curves.items():
        last = [one.rates[-1] for one in curves]
        has_start = all(one.costs["epochs"][0] == 0 for one in curves)
        first = [one.rates[0] for one in curves]
        by_seed = [float(one.success[-1]) for one in curves]
        baseline, others = _baseline(study, group, arm)
        yield End(
            study=study.name,
            arm=arm,
            protocol=group.protocol,
            environment=group.environment,
            seeds=len(curves),
            shared_seeds=len(paired(curves, others)[0]),
            start=fmean(float(one.success[0]) for one in curves) if has_start else None,
            end=mean_rate(matrix(curves, last), matrix(curves, [one.episodes[-1] for one in curves])),
            spread=stdev(by_seed) if len(by_seed) > 1 else None,
            gain=mean_difference(matrix(curves, last) - matrix(curves, first)) if has_start else None,
            baseline=baseline,
            against=difference(curves, others, lambda one: one.rates[-1]) if baseline else None,
        )


def at_budgets(study: StudyResults, group: InstanceSet) -> Iterator[AtBudget]:
    """Yields the success of every arm at every budget. An arm that spends nothing of a budget, such as supervised
    training of generated tokens, has no row for it, and limits no other. An arm whose first evaluation came later than
    that, as without a start, has none either."""
    for budget in BUDGETS:
        spenders = {
            arm: curves for arm, curves in group.curves.items() if all(one.costs[budget][-1] > 0 for one in curves)
        }
        if not spenders:
            continue
        common = min(_least(curves, budget) for curves in spenders.values())
        for arm, curves in spenders.items():
            if not _reaches_back(curves, budget, common):
                continue
            baseline, others = _baseline(study, group, arm)
            is_compared = baseline in spenders and _comparable(study, budget, arm, baseline or arm)
            shared = min(_least(curves, budget), _least(others, budget)) if is_compared else None
            if shared is not None and not _reaches_back([*curves, *others], budget, shared):
                shared = None
            yield AtBudget(
                study=study.name,
                arm=arm,
                protocol=group.protocol,
                environment=group.environment,
                budget=budget,
                common=common,
                success=fmean(float(one.at(budget, common).mean()) for one in curves),
                baseline=baseline,
                shared=shared,
                against=None if shared is None else _difference_at(curves, others, budget, shared),
            )


def pairs(study: StudyResults, groups: Sequence[InstanceSet]) -> Iterator[Pair]:
    """Yields the comparison of every pair of the grid, in each set where both have finished runs."""
    for (arm, other), group in product(study.pairs, groups):
        curves, others = group.curves.get(arm, ()), group.curves.get(other, ())
        end = difference(curves, others, lambda one: one.rates[-1])
        if end is None:
            continue
        spent, equal = {}, {}
        for budget in (one for one in BUDGETS if one != "epochs" and _comparable(study, one, arm, other)):
            amount = min(_least(curves, budget), _least(others, budget))
            found = _difference_at(curves, others, budget, amount)
            if amount > 0 and found is not None and _reaches_back([*curves, *others], budget, amount):
                spent[budget], equal[budget] = amount, found
        seeds = len(paired(curves, others)[0])
        yield Pair(study.name, arm, other, group.protocol, group.environment, seeds, end, equal, spent)


def reached(study: StudyResults, group: InstanceSet) -> Iterator[Reached]:
    """Yields what every arm spent until each threshold; without thresholds in the grid, the end of its baseline is
    one."""
    for arm, curves in group.curves.items():
        for threshold in _thresholds(study, group, arm):
            by_epoch = [one.spent_until("epochs", threshold) for one in curves]
            yield Reached(
                study=study.name,
                arm=arm,
                protocol=group.protocol,
                environment=group.environment,
                threshold=threshold,
                seeds=len(curves),
                reached=sum(epochs != float("inf") for epochs in by_epoch),
                spent={budget: median(one.spent_until(budget, threshold) for one in curves) for budget in BUDGETS},
            )


def difference(curves: Sequence[Curve], others: Sequence[Curve], rates: Callable[[Curve], Floats]) -> Estimate | None:
    """Returns the mean of `differences`; None where there are none."""
    found = differences(curves, others, rates)
    return None if found is None else mean_difference(found)


def differences(curves: Sequence[Curve], others: Sequence[Curve], rates: Callable[[Curve], Floats]) -> Floats | None:
    """Returns the first minus the second [S, I], paired by seed and instance; None where they share none.

    Args:
        curves: the runs of an arm.
        others: those of its baseline.
        rates: [I] of a run, what is compared.
    """
    left, right = paired(curves, others)
    if not left:
        return None
    both = matrix([*left, *right], [rates(one) for one in (*left, *right)])
    return both[: len(left)] - both[len(left) :]


def _difference_at(curves: Sequence[Curve], others: Sequence[Curve], budget: str, amount: float) -> Estimate | None:
    return difference(curves, others, lambda one: one.at(budget, amount))


def _reaches_back(curves: Sequence[Curve], budget: str, amount: float) -> bool:
    """True if all were evaluated before so much was spent; without a start the first evaluation may come later."""
    return all(float(one.costs[budget][0]) <= amount for one in curves)


def _comparable(study: StudyResults, budget: str, *names: str) -> bool:
    """True if runs spent a budget under the same conditions: seconds depend on threads, on how many runs shared the
    machine, and on versions; on the day too, which no result records."""
    if budget != "train_seconds":
        return True
    results = [result for arm in study.arms if arm.arm in names for result in arm.results.values()]
    conditions = [[result.get(key) for key in ("threads", "jobs", "versions")] for result in results]
    return all(each == conditions[0] for each in conditions)


def _least(curves: Sequence[Curve], budget: str) -> float:
    return min(float(one.costs[budget][-1]) for one in curves)


def _baseline(study: StudyResults, group: InstanceSet, arm: str) -> tuple[str | None, Sequence[Curve]]:
    """Returns the arm that this one is compared with, and its runs; none where it is its own or has no finished run
    here."""
    name = study.baselines.get(arm)
    return (None, ()) if name is None or name == arm or name not in group.curves else (name, group.curves[name])


def _thresholds(study: StudyResults, group: InstanceSet, arm: str) -> Sequence[float]:
    if study.thresholds:
        return study.thresholds.get(group.protocol, ())
    name = study.baselines.get(arm)
    return (
        ()
        if name is None or name not in group.curves
        else (fmean(float(one.success[-1]) for one in group.curves[name]),)
    )
