"""The table of many samples of the same instances: what a policy can do that its start could not."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.results.figures import rate, table
from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.record import StudyRecord
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.report.load import curve

_PROTOCOL = "pass@64"  # of configs/evaluation/pass_at_64.yaml: 128 samples
_COLUMNS = {  # protocol and figure of each
    "greedy": ("greedy", "success_rate"),
    "mean@16": ("mean@16", "success_rate"),
    **{f"pass@{k}": (_PROTOCOL, f"pass@{k}") for k in (8, 64, 128)},
}


def in_depth_table(record: StudyRecord, recipes: Mapping[str, str]) -> str:
    """Returns the table; its highest means are bold.

    Args:
        record: evaluations of the arm `start`, and of every recipe by seed.
        recipes: the names of the rows by those of the arms.
    """
    [start] = _of_arm(record, "start")
    many = _curve(start)
    unsolved = {one for one, own in zip(many.instances, many.rates[-1], strict=True) if own == 0}
    runs = {name: _of_arm(record, arm) for arm, name in recipes.items()}
    means = {name: _means(results) for name, results in {"start": [start], **runs}.items()}
    best = [max(column) for column in zip(*means.values(), strict=True)]
    arms = {"start": "start", **{name: arm for arm, name in recipes.items()}}
    rows = []
    for name, own in means.items():
        solved = [_solved(result, unsolved) for result in runs.get(name, ())]
        rates = (rate(value, bold=value == top) for value, top in zip(own, best, strict=True))
        rows.append((name, str(len(solved) or ""), *rates, f"{fmean(solved):.0f}" if solved else "", f"`{arms[name]}`"))
    return table(("recipe", "seeds", *_COLUMNS, f"newly solved of {len(unsolved)}", "arm"), rows)


def _of_arm(record: StudyRecord, arm: str) -> list[Mapping[str, Any]]:
    return [result for run, result in record.results.items() if run.arm == arm]


def _means(results: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the means over seeds, by column."""
    figures = [result["evaluations"][-1]["figures"] for result in results]
    return [fmean(own[protocol][figure] for own in figures) for protocol, figure in _COLUMNS.values()]


def _solved(result: Mapping[str, Any], instances: set[tuple[int, int]]) -> int:
    """Counts those of the instances that a run solves at least once."""
    many = _curve(result)
    return sum(own > 0 and one in instances for one, own in zip(many.instances, many.rates[-1], strict=True))


def _curve(result: Mapping[str, Any]) -> Curve:
    found = curve(0, result, _PROTOCOL)
    if found is None:
        raise ConfigError(f"an evaluation in depth has no protocol {_PROTOCOL}: make it with pass_at_64.yaml")
    return found
