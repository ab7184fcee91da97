"""Does it learn? Tasks x objectives x searches x seeds through `tsr fit`, from the shipped configurations alone.

Beside the grid stand two controls that get the seconds of the beam's run: continued supervised training on the noisy
demonstrations that the policy began with, and plain sampling.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
EPOCHS = 20
PACE_EPOCHS = 5
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Levels:
    """Sokoban levels by the length of their shortest solution, in moves.

    Args:
        name: of the range.
        shortest: `min_solution` of the environment.
        longest: `max_solution`.
    """

    name: str
    shortest: int
    longest: int


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    task: str
    objective: str
    search: str
    seed: int
    epochs: int = EPOCHS
    seconds_of: str | None = None  # the search whose run of the same seed says how long this control may take
    levels: Levels | None = None  # instead of the configuration's own
    evaluate_every: int | None = None  # epochs; None: at the end alone
    measure_start: bool = True  # not needed where another cell begins with the same policy on the same instances

    @property
    def name(self) -> str:
        return "-".join([self.task, *([self.levels.name] if self.levels else []), self.label])

    @property
    def is_grpo(self) -> bool:
        return self.objective == "grpo"

    @property
    def label(self) -> str:
        return f"{self.objective}-{self.search}" + ("-same-seconds" if self.seconds_of else "")


@dataclass(frozen=True)
class Finished:
    """A run and what `Evaluation` measured of it."""

    cell: Cell
    epochs: int
    results: dict[str, Any]  # the contents of evaluation.json


TASKS = ("sokoban", "frozen_lake")
GRID = [
    # GRPO on Sokoban is evaluated on its way too, for the picture in the README
    Cell(task, objective, search, seed, evaluate_every=5 if (task, objective) == ("sokoban", "grpo") else None)
    for task in TASKS
    for seed in SEEDS
    for objective in ("grpo", "ppo")
    for search in ("sample", "beam")
]
CONTROLS = [
    Cell(task, objective, search, seed, seconds_of="beam")
    for task in TASKS
    for seed in SEEDS
    for objective, search in (("sft", "expert"), ("grpo", "sample"))
]
FULL = [*GRID, *CONTROLS]
WEBSHOP = [Cell("webshop", "grpo", search, seed, epochs=30) for seed in SEEDS for search in ("sample", "beam")]
SHORT = [Cell("sokoban", "grpo", search, 1, epochs=10, evaluate_every=5) for search in ("sample", "beam")]


def run_study(cells: Sequence[Cell], folder: Path, jobs: int) -> list[Finished]:
    """Runs what is not there yet, some side by side; a control waits for the run whose seconds it gets."""
    plain = [cell for cell in cells if cell.seconds_of is None]
    controls = [cell for cell in cells if cell.seconds_of is not None]
    kinds = sorted({(cell.task, cell.objective, cell.search) for cell in controls})
    with ThreadPoolExecutor(jobs) as pool:
        finished = list(pool.map(lambda cell: _run(cell, cell.epochs, folder), plain))
        paces = dict(zip(kinds, pool.map(lambda kind: _pace(*kind, folder), kinds), strict=True))
        given = {(f.cell.task, f.cell.search, f.cell.seed): _training_seconds(f) for f in finished if f.cell.is_grpo}
        timed = [
            (cell, given[cell.task, str(cell.seconds_of), cell.seed] / paces[cell.task, cell.objective, cell.search])
            for cell in controls
        ]
        finished += list(pool.map(lambda pair: _run(pair[0], max(1, round(pair[1])), folder), timed))
    return finished


def finished_runs(cells: Sequence[Cell], folder: Path) -> list[Finished]:
    """What an earlier, perhaps interrupted, `run_study` left; without the controls, whose epochs depend on others."""
    plain = [cell for cell in cells if cell.seconds_of is None]
    return [_read(cell, cell.epochs, folder) for cell in plain if _is_finished(_file(cell, folder), cell.epochs)]


def _pace(task: str, objective: str, search: str, folder: Path) -> float:
    """Seconds of an epoch, by a few of them."""
    cell = Cell(task, objective, search, 1)
    flags = ["--data.evaluations=[]", "--trainer.num_sanity_val_steps=0"]
    return _training_seconds(_run(cell, PACE_EPOCHS, folder / "pace", flags)) / PACE_EPOCHS


def _training_seconds(finished: Finished) -> float:
    run = finished.results["run"]
    return float(run["seconds"] - run["evaluation_seconds"])


def _run(cell: Cell, epochs: int, folder: Path, flags: Sequence[str] = ()) -> Finished:
    file = _file(cell, folder)
    if not _is_finished(file, epochs):
        started = time.monotonic()
        place = file.parent
        place.mkdir(parents=True, exist_ok=True)
        with (place / "log.txt").open("w", encoding="utf-8") as log:
            command = [*_command(cell, epochs, folder), *flags]
            subprocess.run(command, check=True, stdout=log, stderr=log, env=_one_thread())
        print(f"{cell.name} seed {cell.seed}: {epochs} epochs in {time.monotonic() - started:.0f} s", flush=True)
    return _read(cell, epochs, folder)


def _file(cell: Cell, folder: Path) -> Path:
    return folder / cell.name / f"seed{cell.seed}" / "evaluation.json"


def _read(cell: Cell, epochs: int, folder: Path) -> Finished:
    return Finished(cell, epochs, json.loads(_file(cell, folder).read_text(encoding="utf-8")))


def _is_finished(file: Path, epochs: int) -> bool:
    return file.is_file() and json.loads(file.read_text(encoding="utf-8"))["run"]["epochs"] == epochs


def _command(cell: Cell, epochs: int, folder: Path) -> list[str]:
    overlays = [CONFIGS / f"{cell.task}.yaml", CONFIGS / f"search/{cell.search}.yaml"]
    overlays.append(CONFIGS / f"objective/{cell.objective}.yaml")
    settings = {
        "seed_everything": cell.seed,
        "trainer.max_epochs": epochs,
        "trainer.check_val_every_n_epoch": cell.evaluate_every or epochs,
        "trainer.num_sanity_val_steps": -1 if cell.measure_start else 0,
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false",
        "trainer.logger.init_args.save_dir": folder,
        "trainer.logger.init_args.name": cell.name,
        "trainer.logger.init_args.version": f"seed{cell.seed}",
    }
    if cell.levels:
        settings["data.env_kwargs.min_solution"] = cell.levels.shortest
        settings["data.env_kwargs.max_solution"] = cell.levels.longest
    flags = [f"--{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "tsr_lightning", "fit", *(f"--config={path}" for path in overlays), *flags]


def _one_thread() -> dict[str, str]:
    """Two torch processes of two threads each on two cores would wait for one another most of the time."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}
