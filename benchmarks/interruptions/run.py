"""A run of `tsr fit` in a folder and a process of its own, which can be interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.interruptions.phase import PHASE

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = {"kill": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
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
    {"class_path": "benchmarks.interruptions.phase.Phase"},
]


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
        """Sleeps for `seconds`, then waits until a checkpoint is being written or the process ends."""
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
