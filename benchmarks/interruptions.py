"""Interrupts runs at random moments, goes on with them, and compares: `python -m benchmarks.interruptions`.

Each run is `tsr fit` of a few seconds in a process of its own, which a signal ends in a rollout, an update, a
validation, while a checkpoint is written or before it begins; every second run is interrupted twice. The same command
then goes on to the end. A table says, by logger and signal, how many ended with the status and the sentence that they
should, with the weights, optimizer state and evaluations of a run that was not interrupted, and without a stray file.
The exit status is 1 where one did not.

    python -m benchmarks.interruptions --kills 30 --sigterms 10 --ctrl_cs 10 --loggers tensorboard wandb none --jobs 2
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.search.progress import Progress
from tsr_lightning.training import checkpoints

ROOT = Path(__file__).resolve().parent.parent
SIGNALS = {"kill": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
STATUSES = {"kill": -signal.SIGKILL, "SIGTERM": 143, "Ctrl-C": 130}
LOGGERS: dict[str, Any] = {
    "tensorboard": {"class_path": "TensorBoardLogger", "init_args": {"save_dir": ".", "default_hp_metric": False}},
    "wandb": {"class_path": "WandbLogger", "init_args": {"project": "interruptions", "offline": True, "save_dir": "."}},
    "none": False,
}
SETTINGS = {
    "trainer.accelerator": "cpu",
    "trainer.max_epochs": 10,
    "trainer.check_val_every_n_epoch": 2,
    "trainer.num_sanity_val_steps": -1,
    "trainer.enable_progress_bar": False,
    "trainer.run_folder": "run",
    "data.instances": 24,
    "data.held_out.instances": 48,
}
CALLBACKS = [
    {"class_path": "callbacks.Evaluation"},
    {"class_path": "callbacks.RolloutProgressBar"},
    {"class_path": "callbacks.ConversationLog"},
    {
        "class_path": "ModelCheckpoint",
        "init_args": {
            "filename": "{epoch:03d}",
            "every_n_epochs": 1,
            "save_top_k": 2,
            "monitor": "epoch",
            "mode": "max",
            "save_last": True,
            "save_on_train_epoch_end": True,
        },
    },
    {"class_path": "benchmarks.interruptions.Phase"},
]
STARTING = 0.15  # of the interruptions come before the run begins
WRITING = 0.15  # and as many wait until a checkpoint is being written, which takes milliseconds here
PHASE = "phase.txt"
SECONDS = 600  # that a process may take
# files that each process adds, or that name it
_OWN = re.compile(r"(run/events\.out\.tfevents\..*|wandb/.*|tmp/.*wandb.*|phase\.txt|output\d+\.txt|settings\.yaml)")


class Phase(Callback):
    """Writes down what the process does, for who interrupts it."""

    def _write(self, phase: str) -> None:
        Path(PHASE).write_text(phase, encoding="utf-8")

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None:
        self._write("rollout" if progress.phase == TRAINING_ROLLOUT else "validation")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._write("update")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write("end of an epoch")


@dataclass(frozen=True)
class Case:
    """A run that is interrupted."""

    logger: str
    by: str
    number: int
    times: int

    def __str__(self) -> str:
        return f"{self.logger}-{self.by}-{self.number}"


@dataclass
class Result:
    """What became of a case."""

    case: Case
    moments: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """A run that was not interrupted."""

    state: Mapping[str, Any]  # weights and optimizer
    evaluations: Sequence[Any]
    files: frozenset[str]
    starting: float  # seconds until it began
    running: float  # and from then on


class Process:
    """A `tsr fit` in a folder, which goes on from what is there."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.log = folder / f"output{number}.txt"
        (folder / PHASE).unlink(missing_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), "WANDB_SILENT": "true"}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "tsr_lightning", "fit", "--config", "quickstart.yaml"]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--config", "settings.yaml", "--ckpt_path", "last"],
                cwd=folder,
                env={**environment, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to a whole group
            )
        self.started = time.monotonic()

    def wait_for_its_beginning(self) -> float:
        """Returns the seconds that it took until its first rollout or validation had a wave."""
        while not (self.folder / PHASE).exists() and self.process.poll() is None:
            time.sleep(0.01)
        return time.monotonic() - self.started

    def wait_for_a_checkpoint(self, seconds: float) -> None:
        """Returns once one is being written, not before so many seconds have passed."""
        time.sleep(seconds)
        while not _unfinished(self.folder) and self.process.poll() is None:
            time.sleep(0.0005)

    def interrupt(self, by: str) -> str | None:
        """Sends the signal and returns the moment, None where the process had ended."""
        unfinished = _unfinished(self.folder)
        phase = (self.folder / PHASE).read_text(encoding="utf-8") if (self.folder / PHASE).exists() else "start"
        if self.process.poll() is not None:
            return None
        if by == "Ctrl-C":
            os.killpg(self.process.pid, SIGNALS[by])
        else:
            self.process.send_signal(SIGNALS[by])
        return "checkpoint" if unfinished else phase

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def _unfinished(folder: Path) -> list[Path]:
    return list((folder / "run" / "checkpoints").glob(".*.part"))


def prepare(folder: Path, logger: str) -> None:
    (folder / "tmp").mkdir(parents=True)
    settings: dict[str, Any] = {}
    for key, value in SETTINGS.items():
        *groups, last = key.split(".")
        inner = settings
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    settings["trainer"] |= {"logger": LOGGERS[logger], "callbacks": CALLBACKS}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def state_of(folder: Path) -> dict[str, Any]:
    contents = checkpoints.load(folder / "run" / "checkpoints" / "last.ckpt")
    return {key: contents[key] for key in ("state_dict", "optimizer_states", "global_step")}


def evaluations_of(folder: Path) -> list[Any]:
    """All that was measured, without the times."""
    history = json.loads((folder / "run" / "evaluation.history.json").read_text(encoding="utf-8"))
    return [_timeless(one) for one in history["evaluations"]]


def _timeless(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _timeless(value) for key, value in node.items() if not key.endswith("seconds")}
    return [_timeless(value) for value in node] if isinstance(node, list) else node


def files_of(folder: Path) -> frozenset[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return frozenset(name for name in names if not _OWN.fullmatch(name))


def equal(one: Any, other: Any) -> bool:
    """True if both are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def run_reference(root: Path, logger: str) -> Reference:
    """Runs to the end without an interruption.

    Raises:
        RuntimeError: it failed.
    """
    folder = root / f"{logger}-uninterrupted"
    prepare(folder, logger)
    process = Process(folder, 0)
    starting = process.wait_for_its_beginning()
    if process.process.wait(SECONDS) != 0:
        raise RuntimeError(process.output())
    running = time.monotonic() - process.started - starting
    return Reference(state_of(folder), evaluations_of(folder), files_of(folder), starting, running)


def run_case(case: Case, root: Path, reference: Reference, seed: int) -> Result:
    """Interrupts a run, goes on with it to its end, and compares."""
    folder, result = root / str(case), Result(case)
    prepare(folder, case.logger)
    draws = random.Random(f"{seed} {case}")
    for number in range(case.times):
        process = Process(folder, number)
        when, later = draws.random(), draws.uniform(0, 0.9 * reference.running / case.times)
        if when < STARTING:
            time.sleep(draws.uniform(0.2, reference.starting))
        else:
            process.wait_for_its_beginning()
            if when < STARTING + WRITING:
                process.wait_for_a_checkpoint(later)
            else:
                time.sleep(later)
        moment = process.interrupt(case.by)
        status = process.process.wait(SECONDS)
        result.moments.append(moment or "after its end")
        result.faults += _faults_of_an_end(case.by, status, process.output(), moment)
        result.faults += _repeated_evaluations(process.output())
    process = Process(folder, case.times)
    if (status := process.process.wait(SECONDS)) != 0:
        result.faults.append(f"it went on with status {status}: {process.output()[-2000:]}")
        return result
    result.faults += _repeated_evaluations(process.output())
    if not equal(state_of(folder), reference.state):
        result.faults.append("its weights or its optimizer's state differ")
    if evaluations_of(folder) != reference.evaluations:
        result.faults.append("its evaluations differ")
    differing = sorted(files_of(folder) ^ reference.files)
    if differing:
        result.faults.append(f"files that it has alone or lacks: {', '.join(differing)}")
    if not result.faults:
        shutil.rmtree(folder)
    return result


def _faults_of_an_end(by: str, status: int, output: str, moment: str | None) -> list[str]:
    if moment is None or (status == 0 and "the run is in " in output):  # it ended by itself
        return []
    faults = [] if status == STATUSES[by] else [f"status {status} in {moment}, not {STATUSES[by]}: {output[-1000:]}"]
    if by != "kill" and f"stopped by {by}: " not in output:
        faults.append(f"no sentence in {moment}: {output[-1000:]}")
    if "Traceback" in output:
        faults.append(f"a traceback in {moment}: {output[-2000:]}")
    return faults


def _repeated_evaluations(output: str) -> list[str]:
    """A process that goes on evaluates no policy that it has loaded."""
    begun = re.search(r"^epoch (\d+): rollout of", output, re.MULTILINE)
    evaluated = [int(epochs) for epochs in re.findall(r"^evaluation after (\d+) epochs", output, re.MULTILINE)]
    first = int(begun[1]) if begun else 0
    return [
        f"the policy after {epochs} epochs was evaluated again" for epochs in evaluated if first and epochs <= first
    ]


def table(results: Sequence[Result]) -> str:
    """Rows by logger and signal."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.case.logger, result.case.by), []).append(result)
    lines = ["| logger | by | runs | equal in all | interruptions, by what they met |", "|---|---|---|---|---|"]
    for (logger, by), own in groups.items():
        moments = Counter(moment for result in own for moment in result.moments)
        met = ", ".join(f"{count} {moment}" for moment, count in moments.most_common())
        good = sum(not result.faults for result in own)
        lines.append(f"| {logger} | {by} | {len(own)} | {good} | {met} |")
    return "\n".join(lines)


def cases(counts: Mapping[str, int], loggers: Sequence[str]) -> list[Case]:
    """Runs by signal, spread over the loggers; every second one is interrupted twice."""
    return [
        Case(loggers[number % len(loggers)], by, number, 1 + number % 2)
        for by, count in counts.items()
        for number in range(count)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--sigterms", type=int, default=10)
    parser.add_argument("--ctrl_cs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--loggers", nargs="+", choices=list(LOGGERS), default=["tensorboard", "none"])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--output", type=Path, help="a new folder for the runs; those that differ are kept there")
    given = parser.parse_args()
    if "wandb" in given.loggers and find_spec("wandb") is None:
        parser.error("--loggers has wandb, which is not installed: pip install wandb")
    root = (given.output or Path(tempfile.mkdtemp(prefix="interruptions-"))).resolve()
    references = {logger: run_reference(root, logger) for logger in dict.fromkeys(given.loggers)}
    for logger, one in references.items():
        print(f"{logger}: begins after {one.starting:.1f} s, runs for {one.running:.1f} s", flush=True)
    counts = {"kill": given.kills, "SIGTERM": given.sigterms, "Ctrl-C": given.ctrl_cs}
    results = []
    with ThreadPoolExecutor(given.jobs) as pool:
        futures = [
            pool.submit(run_case, case, root, references[case.logger], given.seed)
            for case in cases(counts, given.loggers)
        ]
        for future in futures:
            result = future.result()
            results.append(result)
            print(f"{result.case}: {', '.join(result.moments)}: {'; '.join(result.faults) or 'equal'}", flush=True)
    print(f"\n{table(results)}")
    failed = [result for result in results if result.faults]
    if not failed:
        shutil.rmtree(root)
    else:
        print(f"\n{len(failed)} of {len(results)} differ; they are kept in {root}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
