"""The table of searched recipes minus plain ones, in points of success."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.results.figures import points, points_with_interval, rate
from benchmarks.results.finished import PROTOCOLS, starts_of
from benchmarks.results.markdown import table
from benchmarks.results.pairs import PairRow, VerdictTask
from tsr_lightning.studies.report.comparisons import Pair, all_sets, pairs
from tsr_lightning.studies.report.intervals import Estimate
from tsr_lightning.studies.report.load import StudyResults

_FULL = 5  # seeds, which are said where there are fewer
_HEADER = ("task, start, aim", "searched, under", "minus", "after all epochs", "at equal tokens", "at equal seconds")
_NUMBERS = ("no", "one", "two", "three", "four")


def verdict_table(studies: Mapping[str, StudyResults], tasks: Sequence[VerdictTask]) -> str:
    """Bold where both protocols reach the aim and both intervals exclude zero, by the exact figures.

    Args:
        studies: by name.
        tasks: in the order of their rows.
    """
    return table(_HEADER, (row for task in tasks for row in _rows(studies[task.study], task)))


def _rows(study: StudyResults, task: VerdictTask) -> Iterator[Sequence[str]]:
    asked = replace(study, pairs=tuple((row.arm, row.other) for row in task.pairs))
    found = {
        (pair.arm, pair.other, pair.protocol): pair
        for pair in pairs(asked, all_sets(asked))
        if pair.environment == task.environment
    }
    for number, row in enumerate(task.pairs):
        both = [found[row.arm, row.other, protocol] for protocol in PROTOCOLS]
        seeds = both[0].seeds
        fewer = f", {_NUMBERS[seeds]} seed{'s' if seeds > 1 else ''}" if seeds < _FULL else ""
        yield ("" if number else _named(task, study), row.under, row.minus + fewer, *_cells(both, row, task.aim))


def _named(task: VerdictTask, study: StudyResults) -> str:
    """With the start, sampled and greedy."""
    starts = ", ".join(map(rate, starts_of(study, task.pairs[0].arm, task.environment)))
    return f"{task.name}; {starts}; {points(task.aim)} points"


def _cells(both: Sequence[Pair], row: PairRow, aim: float) -> Iterator[str]:
    yield verdict_cell([pair.end for pair in both], aim)
    yield verdict_cell([pair.equal["tokens_generated"] for pair in both], aim)
    yield verdict_cell([pair.equal["train_seconds"] for pair in both], aim) if row.alike else "conditions differ"


def verdict_cell(estimates: Sequence[Estimate], aim: float) -> str:
    """Sampled and greedy.

    Args:
        estimates: of each protocol.
        aim: success rate that each has to reach to be bold, with an interval above 0.
    """
    text = " / ".join(map(points_with_interval, estimates))
    return f"**{text}**" if all(one.value >= aim and one.low > 0 for one in estimates) else text
