"""Studies of success while training: a verdict, a table, a JSON and a picture of the curves."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.curve import success_curve
from benchmarks.report import PROTOCOLS, by_cell, pooled
from benchmarks.study import Cell, Finished
from callbacks.statistics import paired_difference

CellFigures = dict[str, Any]  # the figures of one cell, judged by one protocol


@dataclass(frozen=True)
class CurveStudy:
    """A study whose runs are judged on their way.

    Args:
        name: of its files and of the folder of its runs.
        preface: what stands above its table.
        cells: its runs.
        caption: of the picture.
        order: by which the rows of the table are sorted.
        draw: makes the picture.
    """

    name: str
    preface: str
    cells: Sequence[Cell]
    caption: str
    order: Callable[[CellFigures], Any]
    draw: Callable[[Sequence[CellFigures], Path], None]


def write_curves(study: CurveStudy, finished: Sequence[Finished], runs: Path, folder: Path) -> None:
    """Writes the verdict, the table, a JSON and a picture, and prints the first two."""
    starts = {run.cell.levels: run for run in finished if run.cell.measure_start}
    rows = [
        _row(cell_runs, starts[cell_runs[0].cell.levels], protocol, runs)
        for cell_runs in by_cell(finished).values()
        if cell_runs[0].cell.levels in starts  # the run that measures the start may not be finished
        for protocol in PROTOCOLS
    ]
    if not rows:
        print(f"--report: no finished run in {runs}; run without it first, or name the folder with --runs")
        return
    rows.sort(key=study.order)
    folder.mkdir(parents=True, exist_ok=True)
    text = _verdict(rows, len(study.cells)) + _table(rows)
    picture = f"\n![{study.caption}]({study.name}.png)\n"
    (folder / f"{study.name}.md").write_text(study.preface + text + picture, encoding="utf-8")
    (folder / f"{study.name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    study.draw(rows, folder / f"{study.name}.png")
    print(text)


def _row(runs: Sequence[Finished], start: Finished, protocol: str, folder: Path) -> CellFigures:
    """Figures of one cell. All of a range start with the same policy on the same levels, which one run measured."""
    cell = runs[0].cell
    before = start.results["evaluations"][protocol]["before"]
    curves = [
        {0: before["figures"]["success_rate"], **success_curve(folder / cell.name / f"seed{run.cell.seed}", protocol)}
        for run in runs
    ]
    after = pooled([run.results["evaluations"][protocol]["after"] for run in runs])
    difference = paired_difference(pooled([before] * len(runs)), after)
    if difference is None:
        raise ValueError(f"{cell.name} was not evaluated")
    costs = [run.results["run"] for run in runs]
    epochs = list(range(0, cell.epochs + 1, cell.evaluate_every or cell.epochs))
    return {
        "levels": cell.levels.name if cell.levels else "",
        "objective": cell.objective,
        "search": cell.search,
        "protocol": protocol,
        "seeds": [run.cell.seed for run in runs],
        "epochs": epochs,
        "curves": [[curve[epoch] for epoch in epochs] for curve in curves],
        "difference": difference.value,
        "difference_interval": list(difference.interval),
        "seconds": fmean(cost["seconds"] - cost["evaluation_seconds"] for cost in costs),
        "tokens_generated": fmean(cost["tokens_generated"] for cost in costs),
    }


def _gains(row: CellFigures) -> list[float]:
    """By seed, the end less the start."""
    return [curve[-1] - curve[0] for curve in row["curves"]]


def _verdict(rows: Sequence[CellFigures], cells: int) -> str:
    """What a reader wants to know first: how many cells, and how many single runs, end below their start."""
    gains = [(gain, row) for row in rows for gain in _gains(row)]
    below = [row for row in rows if fmean(_gains(row)) < 0]
    significant = [row for row in rows if row["difference_interval"][1] < 0]
    least, where = min(gains, key=lambda pair: pair[0])
    missing = cells - len(gains) // len(PROTOCOLS)
    unfinished = f"{missing} of {cells} runs are still missing here. " if missing else ""
    return (
        f"{unfinished}**{len(below)} of {len(rows)} cells end below their start on the mean of their seeds"
        f"{_named(below)}, {len(significant)} by more than the interval{_named(significant)}; "
        f"{sum(gain < 0 for gain, _ in gains)} of {len(gains)} single runs do.** "
        f"The least of these ends {least:+.3f} from its start ({_name(where)}).\n\n"
    )


def _name(row: CellFigures) -> str:
    return f"{row['levels']}, {row['objective']}, {row['search']}, {row['protocol']}"


def _named(rows: Sequence[CellFigures]) -> str:
    return f" ({'; '.join(map(_name, rows))})" if rows else ""


def _table(rows: Sequence[CellFigures]) -> str:
    *on_the_way, end = rows[0]["epochs"]
    head = (
        f"| levels | objective | search | judged | {' | '.join(map(str, on_the_way))} | {end} epochs (each seed) "
        "| end − start [95%] | seconds | tokens generated |\n" + "|---" * (len(on_the_way) + 8) + "|\n"
    )
    return head + "".join(map(_line, rows))


def _line(row: CellFigures) -> str:
    *on_the_way, end = [fmean(point) for point in zip(*row["curves"], strict=True)]
    seeds = ", ".join(f"{curve[-1]:.3f}" for curve in row["curves"])
    low, high = row["difference_interval"]
    return (
        f"| {row['levels']} | {row['objective']} | {row['search']} | {row['protocol']} "
        f"| {' | '.join(f'{rate:.3f}' for rate in on_the_way)} | {end:.3f} ({seeds}) "
        f"| {row['difference']:+.3f} [{low:+.3f}, {high:+.3f}] "
        f"| {row['seconds']:.0f} | {row['tokens_generated']:,.0f} |\n"
    )
