"""Runs `tsr` and Python code in this process and in others, with settings for runs of a second."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tsr_lightning.cli import app as cli
from tsr_lightning.policy.export import export

ROOT = Path(__file__).resolve().parent.parent
IMPORT_PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests")])  # of other processes
TINY = (
    '{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, '
    '"max_position_embeddings": 2048}'
)
# Two epochs of four instances, on the CPU, whose results can be compared bit for bit.
QUICK = (
    *("--trainer.accelerator", "cpu", "--trainer.max_epochs", "2", "--trainer.num_sanity_val_steps", "0"),
    *("--trainer.enable_progress_bar", "false", "--trainer.callbacks", "null"),
    *("--data.updates.min_trajectories", "1"),
    *("--data.instances", "4", "--data.held_out.instances", "4"),
)


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Runs `tsr` in a folder, and restores what it changes of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["tsr"])
        patch.setattr(sys, "path", [*sys.path])
        for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # which Lightning leaves behind
            patch.setenv(name, "0")
        yield


def tsr(*args: object) -> cli.TSRCLI:
    """`tsr` in this process."""
    return cli.run([str(arg) for arg in args])


def tsr_process(*args: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `tsr` in another process, which can import from its folder and from tests/."""
    return subprocess.run(
        [sys.executable, "-m", "tsr_lightning", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def python_output(code: str, *args: object, hash_seed: str) -> str:
    """The standard output of Python code in another process, where Python's own hashes of strings are other ones."""
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": IMPORT_PATH}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout


def warm_started(task: str, folder: Path) -> Path:
    """A tiny model, trained on a few of the oracle's demonstrations and exported to a folder."""
    folder.mkdir(parents=True)
    with in_folder(folder):
        config = ("--config", f"warm_start/{task}.yaml", "--model.policy.model", TINY, *QUICK)
        fast = ("--model.optimizer.learning_rate", "0.01", "--model.optimizer.warmup_updates", "5")
        agent = tsr("fit", *config, *fast, "--trainer.max_epochs", "30", "--data.instances", "32").model
        export(agent.policy, agent.tokenizer, folder / "model")
    return folder / "model"
