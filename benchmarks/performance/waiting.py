"""Environments that wait: `python -m benchmarks.performance.waiting`, in turn with generation and beside it.

The same rollouts, lap after lap in turn, by one engine: all steps one after the other, as a loop over them would do
it, and in threads of their own while the other half of the searches generates.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.performance.growth import BASE
from benchmarks.performance.ours import sit_down
from benchmarks.performance.report import machine
from benchmarks.performance.workload import Workload, make_model, play, tokenizer_of

WAITS = (0.0, 0.002, 0.01, 0.05)  # seconds
WORKERS = (0, 1, 4, 16)
HEAD = (
    "| a step waits, ms | workers | seconds | times faster than in turn | waited for environments, s "
    "| steps' own seconds |\n|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Point:
    """Medians of the laps."""

    work: Workload
    seconds: float
    seconds_environment: float  # that generation did not hide
    env_steps: float

    def line(self, in_turn: "Point") -> str:
        return (
            f"| {1000 * self.work.wait:g} | {self.work.env_workers} | {self.seconds:.2f} "
            f"| {in_turn.seconds / self.seconds:.2f} | {self.seconds_environment:.2f} "
            f"| {self.work.wait * self.env_steps:.2f} |\n"
        )


def compare(base: Workload, workers: Sequence[int], laps: int) -> list[Point]:
    """One point per number of workers, the first of which is the others' measure."""
    works = [replace(base, env_workers=count) for count in workers]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(base.shape, folder, base.longest)
        seat, tokenizer = sit_down(base, folder), tokenizer_of(folder)
        play(base, seat.engine, tokenizer)
        played = []
        for lap in range(1, laps + 1):
            for work in works:
                seat.renew()
                played.append((work, play(work, seat.engine, tokenizer, lap)))
    return [
        Point(
            work,
            median(figures.seconds for of, figures in played if of is work),
            median(figures.costs.seconds_environment for of, figures in played if of is work),
            median(figures.costs.env_steps for of, figures in played if of is work),
        )
        for work in works
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance.waiting", description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of generation")
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/performance"), help="of waiting.md and waiting.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    points: list[Point] = []
    text = f"{machine()}, {args.threads} threads; medians of {args.laps} laps in turn.\n\n{HEAD}"
    for wait in WAITS:
        found = compare(replace(BASE, wait=wait), WORKERS, args.laps)
        points += found
        text += "".join(point.line(found[0]) for point in found)
        figures = [asdict(point) for point in points]
        (args.out / "waiting.md").write_text(text, encoding="utf-8")
        (args.out / "waiting.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
