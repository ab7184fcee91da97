"""How cost grows: `python -m benchmarks.performance.growth`, one size at a time changed, against the floor's growth.

Every point is measured in a process of its own, so that memory is a point's own: one rollout for speed and floor, then
an iteration under Lightning, of which the second epoch counts.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import torch

from benchmarks.performance.floor import floor_seconds, measured
from benchmarks.performance.iteration import Stopwatch, agent_of, data_of, trainer_of
from benchmarks.performance.ours import sit_down
from benchmarks.performance.report import machine
from benchmarks.performance.workload import LADDER, Workload, make_model, play, tokenizer_of
from tsr_lightning.rollout.memory import PeakMemory

_CPU = torch.device("cpu")
BASE = Workload(groups=4, members=4, turns=4, prompt_tokens=100, response_tokens=8)
SMALL = replace(BASE, groups=2, members=2)  # for the models that take their time
HEAD = (
    "| {axis} | seconds of rollout | floor, s | times the floor | floor, tokens | computed | seconds, relative "
    "| floor, relative | peak of rollout, MiB | seconds of update | peak of update, MiB |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Axis:
    """What grows, by what name, through which values."""

    name: str
    points: tuple[tuple[str, Workload], ...]  # label and workload


@dataclass(frozen=True)
class Point:
    """What was measured at one size."""

    label: str
    work: Workload
    seconds: float
    floor_seconds: float
    floor_tokens: int
    tokens_computed: int
    update_seconds: float
    rollout_peak: int  # bytes above what the process held before
    update_peak: int


def axes() -> list[Axis]:
    """From the base, one size at a time."""
    return [
        Axis("width (of 8 candidates)", _over("width", (1, 2, 4, 8), replace(BASE, candidates=8))),
        Axis("candidates (width 1)", _over("candidates", (1, 2, 4, 8, 16), replace(BASE, width=1))),
        Axis("turns", _over("turns", (1, 2, 4, 8), BASE)),
        Axis("prompt tokens a turn", _over("prompt_tokens", (50, 100, 200, 400), BASE)),
        Axis("response tokens", _over("response_tokens", (4, 8, 16, 32), BASE)),
        Axis("past turns in view (of 8)", _over("past_turns", (0, 1, 3, None), replace(BASE, turns=8))),
        Axis("instances", _over("groups", (1, 2, 4, 8, 16), BASE)),
        Axis("trajectories of an instance", _over("members", (2, 4, 8, 16), BASE)),
        Axis("budget for prefixes, MiB", _over("kv_cache_mib", (4096, 64, 32, 16, 10), replace(BASE, groups=8))),
        Axis(
            "model, parameters",
            tuple((f"{shape.parameters / 1e6:.1f}M", replace(SMALL, shape=shape)) for shape in LADDER),
        ),
    ]


def measure(label: str, work: Workload, threads: int) -> Point:
    """To be called in a process of its own."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(work.shape, folder, work.longest)
        engine = sit_down(work, folder).engine
        tokenizer = tokenizer_of(folder)
        with PeakMemory(_CPU) as of_rollout:
            play(work, engine, tokenizer, 0)
        played = min((play(work, engine, tokenizer, lap) for lap in (1, 2)), key=lambda figures: figures.seconds)
        del engine
        epochs: list[dict[str, Any]] = []
        of_updates: list[PeakMemory] = []
        watching = ExitStack()

        def rolled_out() -> None:
            of_updates.append(watching.enter_context(PeakMemory(_CPU)))

        def ended(figures: dict[str, Any]) -> bool:
            watching.close()
            epochs.append(figures)
            return len(epochs) < 2

        trainer_of(Stopwatch(ended, rolled_out)).fit(agent_of(work, folder), datamodule=data_of(work))
    return Point(
        label=label,
        work=work,
        seconds=played.seconds,
        floor_seconds=floor_seconds(played.floor, work.shape, measured(work)),
        floor_tokens=played.floor.tokens,
        tokens_computed=played.costs.tokens_computed,
        update_seconds=epochs[-1]["seconds_update"],
        rollout_peak=of_rollout.added,
        update_peak=max(update.added for update in of_updates),
    )


def _over(field: str, values: Sequence[int | None], base: Workload) -> tuple[tuple[str, Workload], ...]:
    def with_value(value: Any) -> Workload:
        return replace(base, **{field: value})

    return tuple(("all" if value is None else str(value), with_value(value)) for value in values)


def table(axis: str, points: Sequence[Point]) -> str:
    return HEAD.format(axis=axis) + "".join(_line(point, points[0]) for point in points)


def _line(point: Point, first: Point) -> str:
    return (
        f"| {point.label} | {point.seconds:.3f} | {point.floor_seconds:.3f} "
        f"| {point.seconds / point.floor_seconds:.1f} | {point.floor_tokens:,} | {point.tokens_computed:,} "
        f"| {point.seconds / first.seconds:.2f} | {point.floor_seconds / first.floor_seconds:.2f} "
        f"| {point.rollout_peak / 2**20:.0f} | {point.update_seconds:.3f} | {point.update_peak / 2**20:.0f} |\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance.growth", description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--axis", default="", help="measure only the axes whose name contains this")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/performance"), help="folder of growth.md, .json and .png"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # of the processes that are started from here
    tables, figures = [f"{machine()}, {args.threads} threads.\n"], {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for axis in axes():
            if args.axis not in axis.name:
                continue
            points = [pool.apply(measure, (label, work, args.threads)) for label, work in axis.points]
            figures[axis.name] = [asdict(point) for point in points]
            tables.append(table(axis.name, points))
            print(tables[-1], flush=True)
            (args.out / "growth.md").write_text("\n".join(tables), encoding="utf-8")
            (args.out / "growth.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            draw(figures, args.out / "growth.png")


if __name__ == "__main__":
    main()


matplotlib.use("Agg")
COLUMNS = 5
LINES = {
    "seconds": ("rollout", "#08519c", "-"),
    "floor_seconds": ("its floor", "#08519c", ":"),
    "update_seconds": ("update", "#a50f15", "-"),
}


def draw(axes: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """One panel per size that grows; the further the solid line lies above the dotted one, the more is left."""
    from matplotlib import pyplot, ticker

    rows = -(-len(axes) // COLUMNS)
    figure, panels = pyplot.subplots(rows, COLUMNS, figsize=(3 * COLUMNS, 2.6 * rows), squeeze=False)
    for panel in panels.flat:
        panel.set_visible(False)
    for panel, (name, points) in zip(panels.flat, axes.items(), strict=False):
        panel.set_visible(True)
        labels = [point["label"] for point in points]
        for key, (label, colour, style) in LINES.items():
            panel.plot(labels, [point[key] for point in points], style, color=colour, label=label, marker="o", ms=3)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())
        panel.tick_params(labelsize="small")
        panel.set_xlabel(name)
        panel.grid(alpha=0.3, which="both")
    for row in panels:
        row[0].set_ylabel("seconds")
    panels[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
