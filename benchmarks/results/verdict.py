"""The tables of searched recipes minus plain ones, in points of success."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.results.figures import points, points_with_interval, rate, table
from benchmarks.results.finished import PROTOCOLS, starts_of
from benchmarks.results.pairs import PairRow, VerdictTask
from tsr_lightning.statistics import Estimate, holm
from tsr_lightning.studies.report.comparisons import Pair, all_sets, pairs
from tsr_lightning.studies.report.load import StudyResults

_FULL = 5  # seeds, which are said where there are fewer
_PERIODS = ("after all epochs", "at equal tokens", "at equal seconds")
_HEADER = ("task, start, aim", "searched, under", "minus", *_PERIODS, "arms")
Cell = Sequence[Estimate]  # of each protocol

_NUMBERS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True)
class Verdict:
    """A searched recipe minus a plain one.

    Args:
        task: of which it is.
        row: the two recipes.
        starts: success at the start, by protocol.
        seeds: that both have.
        cells: their difference by period; empty where conditions differ.
        surely: by period, True if the difference is significant among all (Holm, 5%); never of one seed.
    """

    task: VerdictTask
    row: PairRow
    starts: Sequence[float]
    seeds: int
    cells: Sequence[Cell]
    surely: Sequence[bool] = ()

    @property
    def start(self) -> str:
        return ", ".join(map(rate, self.starts))

    @property
    def minus(self) -> str:
        """The plain recipe, with the seeds where there are fewer than five."""
        fewer = f", {_NUMBERS[self.seeds]} seed{'s' if self.seeds > 1 else ''}" if self.seeds < _FULL else ""
        return self.row.minus + fewer

    @property
    def judged(self) -> Sequence[Cell]:
        """The cells that a verdict is given on: one seed says nothing of seeds like it."""
        return self.cells if self.seeds > 1 else [()] * len(self.cells)

    @property
    def written(self) -> list[str]:
        return [
            verdict_cell(cell, self.task.aim, surely) if cell else "conditions differ"
            for cell, surely in zip(self.cells, self.surely, strict=True)
        ]


def verdicts(studies: Mapping[str, StudyResults], tasks: Sequence[VerdictTask]) -> list[Verdict]:
    """Compares all pairs, with p-values corrected for their number (Holm). One seed says nothing of seeds like it.

    Args:
        studies: by name.
        tasks: in the order of their rows.
    """
    found = [one for task in tasks for one in _of_task(studies[task.study], task)]
    surely = iter(holm([_p_value(cell) for one in found for cell in one.judged if cell]))
    return [replace(one, surely=[bool(cell) and next(surely) for cell in one.judged]) for one in found]


def verdict_table(found: Sequence[Verdict]) -> str:
    """Returns the table of all pairs. Bold where both protocols reach the aim, and the comparison holds."""
    rows = []
    for before, one in zip([None, *found], found, strict=False):
        named = f"{one.task.name}; {one.start}; {points(one.task.aim)} points"
        is_first = before is None or before.task is not one.task
        arms = f"`{one.row.arm}` − `{one.row.other}`"
        rows.append([named if is_first else "", one.row.under, one.minus, *one.written, arms])
    return table(_HEADER, rows)


def verdict_counts(found: Sequence[Verdict]) -> str:
    """Says how many cells there are and what holds of how many."""
    judged = [(one, cell, surely) for one in found for cell, surely in zip(one.judged, one.surely, strict=True) if cell]
    behind = sum(surely and all(each.value < 0 for each in cell) for _, cell, surely in judged)
    aimed = [(cell, surely) for one, cell, surely in judged if all(each.value >= one.task.aim for each in cell)]
    clear = sum(all(each.low > 0 for each in cell) for cell, _ in aimed)
    bold = sum(surely for _, surely in aimed)
    lines = (
        f"cells: {len(judged)}",
        f"significant: {sum(surely for *_, surely in judged)}, {behind} of them behind",
        f"at the aim in both figures, with intervals that exclude zero: {clear}, {bold} of them significant, and bold",
    )
    return "\n".join(f"- {line}" for line in lines)


def _p_value(estimates: Cell) -> float:
    """Returns the larger p-value, since both protocols have to hold."""
    return max(one.p_value for one in estimates)


def _of_task(study: StudyResults, task: VerdictTask) -> Iterator[Verdict]:
    asked = replace(study, pairs=tuple((row.arm, row.other) for row in task.pairs))
    found = {
        (pair.arm, pair.other, pair.protocol): pair
        for pair in pairs(asked, all_sets(asked))
        if pair.environment == task.environment
    }
    starts = starts_of(study, task.pairs[0].arm, task.environment)
    for row in task.pairs:
        both = [found[row.arm, row.other, protocol] for protocol in PROTOCOLS]
        yield Verdict(task, row, starts, both[0].seeds, list(_cells(both, row)))


def _cells(both: Sequence[Pair], row: PairRow) -> Iterator[Cell]:
    """Yields the differences by period, in the order of the columns."""
    yield [pair.end for pair in both]
    yield [pair.equal["tokens_generated"] for pair in both]
    yield [pair.equal["train_seconds"] for pair in both] if row.alike else []


def verdict_cell(estimates: Cell, aim: float, surely: bool) -> str:
    """Returns the differences of both protocols, sampled and greedy, in bold where they reach the aim.

    Args:
        estimates: of each protocol.
        aim: success rate that each has to reach to be bold.
        surely: True if the comparison is significant among all.
    """
    text = " / ".join(map(points_with_interval, estimates))
    return f"**{text}**" if surely and all(one.value >= aim for one in estimates) else text
