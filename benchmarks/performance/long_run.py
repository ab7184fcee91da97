"""What a long run holds: `python -m benchmarks.performance.long_run`, resident memory and seconds of every epoch.

The quickstart's recipe, the supervised one and, if asked for, a pretrained model under a beam (`make smollm2`) go
through `tsr fit`, each in a process of its own and without evaluations. A table says how much more memory a run takes
in the end than after its fifth epoch.
"""

import argparse
import csv
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean

import matplotlib
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.performance.report import machine
from tsr_lightning.rollout.memory import PeakMemory

matplotlib.use("Agg")
RECIPES = {
    "quickstart": ["--config=quickstart.yaml"],
    "supervised": ["--config=warm_start/sokoban.yaml"],
    "smollm2": [  # two epochs of demonstrations, then the beam
        *("--config=quickstart_llm.yaml", "--model.policy.dtype=bfloat16", "--data.plan.init_args.epochs=[2]"),
        *("--data.instances=4", "--data.updates.micro_batch_tokens=2048", "--data.engine.init_args.kv_cache_mib=512"),
    ],
}
SETTLED = 5  # epochs after which a run should hold what it will ever hold
HEAD = (
    "| recipe | epochs | peak of the first epoch, MiB | of the first {settled} | of all | all over the first {settled} "
    "| seconds an epoch | CPU seconds an epoch |\n|---|---|---|---|---|---|---|---|\n"
)
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch took; a field is a column of the CSV file."""

    peak_mib: float  # the process's resident memory at its highest
    end_mib: float  # and when the epoch ended
    seconds: float
    cpu_seconds: float  # of all threads, user and system


class Footprint(Callback):
    """Writes a line per epoch.

    Args:
        file: the CSV file, written anew.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._watched = ExitStack()
        self._started = self._cpu_started = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._file.write_text(",".join(field.name for field in fields(Epoch)) + "\n", encoding="utf-8")
        self._begin()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seconds, cpu_seconds = time.perf_counter() - self._started, time.process_time() - self._cpu_started
        self._watched.close()
        highest = self._peak.highest_mib
        self._begin()
        epoch = Epoch(highest, self._peak.before / 2**20, seconds, cpu_seconds)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(",".join(f"{figure:.2f}" for figure in astuple(epoch)) + "\n")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._watched.close()

    def _begin(self) -> None:
        self._peak = self._watched.enter_context(PeakMemory(_CPU))
        self._started, self._cpu_started = time.perf_counter(), time.process_time()


def measure(recipe: str, epochs: int, threads: int, folder: Path) -> list[Epoch]:
    """Trains by a recipe of `RECIPES` in a process of its own."""
    file = folder / f"long_run_{recipe}.csv"
    settings = {
        "trainer.accelerator": "cpu",
        "trainer.max_epochs": epochs,
        "trainer.limit_val_batches": 0,
        "trainer.num_sanity_val_steps": 0,
        "trainer.enable_progress_bar": "false",
        "trainer.logger.init_args.save_dir": folder / "runs",
        "trainer.callbacks+": "benchmarks.performance.long_run.Footprint",  # this module is __main__ here
        "trainer.callbacks.file": file,
    }
    command = [sys.executable, "-m", "tsr_lightning", "fit", *RECIPES[recipe]]
    with (folder / f"long_run_{recipe}.log").open("w", encoding="utf-8") as log:
        subprocess.run(
            [*command, *(f"--{key}={value}" for key, value in settings.items())],
            check=True,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
    return read(file)


def read(file: Path) -> list[Epoch]:
    with file.open(encoding="utf-8") as lines:
        return [Epoch(**{name: float(figure) for name, figure in line.items()}) for line in csv.DictReader(lines)]


def line(recipe: str, epochs: list[Epoch]) -> str:
    peaks = [epoch.peak_mib for epoch in epochs]
    settled, highest = max(peaks[:SETTLED]), max(peaks)
    warm = epochs[1:] or epochs  # the first one compiles, allocates and loads
    return (
        f"| {recipe} | {len(epochs)} | {peaks[0]:,.0f} | {settled:,.0f} | {highest:,.0f} | {highest / settled:.2f} "
        f"| {fmean(epoch.seconds for epoch in warm):.2f} | {fmean(epoch.cpu_seconds for epoch in warm):.2f} |\n"
    )


def draw(runs: dict[str, list[Epoch]], out: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    for recipe, epochs in runs.items():
        axes.plot(range(1, len(epochs) + 1), [epoch.peak_mib for epoch in epochs], label=recipe)
    axes.set(xlabel="epoch", ylabel="peak resident memory, MiB")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance.long_run", description=__doc__)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["quickstart", "supervised"])
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/performance"), help="folder of long_run.md, .png, .csv")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[Epoch]] = {}
    for recipe in args.recipes:
        runs[recipe] = measure(recipe, args.epochs, args.threads, args.out)
        table = HEAD.format(settled=SETTLED) + "".join(line(name, epochs) for name, epochs in runs.items())
        (args.out / "long_run.md").write_text(f"{machine()}, {args.threads} thread(s).\n\n{table}", encoding="utf-8")
        draw(runs, args.out / "long_run.png")
    print(table)


if __name__ == "__main__":
    main()
