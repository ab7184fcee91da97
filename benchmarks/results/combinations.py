"""The table of all shipped combinations: does any end below its start?"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from benchmarks.results.figures import rate, table
from benchmarks.results.finished import last_rates
from tsr_lightning.studies.report.comparisons import InstanceSet, ends, instance_sets
from tsr_lightning.studies.report.load import StudyResults

_HEADER = (
    *("task", "protocol", "arms", "runs", "start", "lowest end of an arm", "highest"),
    *("arms below the start", "runs below the start"),
)


def combinations_table(study: StudyResults, tasks: Mapping[str, str]) -> str:
    """Returns the table, a row per task and protocol.

    Args:
        study: its results.
        tasks: their names by their points on the axis `task`.
    """
    of_task = {task: {arm.arm for arm in study.arms if arm.points["task"] == task} for task in tasks}
    rows = []
    for task, name in tasks.items():
        for group in instance_sets(study):
            curves = {arm: own for arm, own in group.curves.items() if arm in of_task[task]}
            if curves:
                rows.append((name, group.protocol, *_row(study, replace(group, curves=curves))))
    return table(_HEADER, rows)


def _row(study: StudyResults, group: InstanceSet) -> Iterator[str]:
    arms = list(ends(study, group))
    start = next(arm.start for arm in arms if arm.start is not None)
    means = [arm.end.value for arm in arms]
    runs = list(chain.from_iterable(map(last_rates, group.curves.values())))
    yield from (str(len(arms)), str(len(runs)), rate(start), rate(min(means)), rate(max(means)))
    yield str(sum(mean < start for mean in means))
    below = [start - run for run in runs if run < start]
    yield f"{len(below)}, by {rate(max(below))} at most" if below else "0"
