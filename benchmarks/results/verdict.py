"""The table of searched recipes minus plain ones, in points of success."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.results.figures import points, points_with_interval, rate
from benchmarks.results.finished import PROTOCOLS, starts_of
from benchmarks.results.markdown import table
from benchmarks.results.pairs import PairRow, VerdictTask
from tsr_lightning.statistics import Estimate, discoveries
from tsr_lightning.studies.report.comparisons import Pair, all_sets, pairs
from tsr_lightning.studies.report.load import StudyResults

_FULL = 5  # seeds, which are said where there are fewer
_HEADER = ("task, start, aim", "searched, under", "minus", "after all epochs", "at equal tokens", "at equal seconds")
Cell = Sequence[Estimate]  # of each protocol

_NUMBERS = ("no", "one", "two", "three", "four")


def verdict_table(studies: Mapping[str, StudyResults], tasks: Sequence[VerdictTask]) -> str:
    """Bold where both protocols reach the aim, and the comparison holds beside all others (Benjamini-Hochberg, 5%).

    Args:
        studies: by name.
        tasks: in the order of their rows.
    """
    rows = [row for task in tasks for row in _rows(studies[task.study], task)]
    surely = iter(discoveries([_p_value(cell) for _, cells, _ in rows for cell in cells if cell]))
    return table(_HEADER, ([*texts, *(_written(cell, aim, surely) for cell in cells)] for texts, cells, aim in rows))


def _p_value(estimates: Cell) -> float:
    """Both protocols have to hold, so the larger one is that of both."""
    return max(one.p_value for one in estimates)


def _written(estimates: Cell, aim: float, surely: Iterator[bool]) -> str:
    return verdict_cell(estimates, aim, next(surely)) if estimates else "conditions differ"


def _rows(study: StudyResults, task: VerdictTask) -> Iterator[tuple[Sequence[str], Sequence[Cell], float]]:
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
        texts = ("" if number else _named(task, study), row.under, row.minus + fewer)
        yield texts, list(_cells(both, row)), task.aim


def _named(task: VerdictTask, study: StudyResults) -> str:
    """With the start, sampled and greedy."""
    starts = ", ".join(map(rate, starts_of(study, task.pairs[0].arm, task.environment)))
    return f"{task.name}; {starts}; {points(task.aim)} points"


def _cells(both: Sequence[Pair], row: PairRow) -> Iterator[Cell]:
    """Empty where conditions differ."""
    yield [pair.end for pair in both]
    yield [pair.equal["tokens_generated"] for pair in both]
    yield [pair.equal["train_seconds"] for pair in both] if row.alike else []


def verdict_cell(estimates: Cell, aim: float, surely: bool) -> str:
    """Sampled and greedy.

    Args:
        estimates: of each protocol.
        aim: success rate that each has to reach to be bold.
        surely: whether the comparison holds beside all others.
    """
    text = " / ".join(map(points_with_interval, estimates))
    return f"**{text}**" if surely and all(one.value >= aim for one in estimates) else text
