"""The folder that holds every file of a run, the lock that keeps a second run out of it, and the commands that come
next. Knows no logger."""

import re
import shlex
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, runtime_checkable

from tsr_lightning.errors import ConfigError
from tsr_lightning.training.checkpoints import PART
from tsr_lightning.training.locks import Held, Lock

_LOCK = ".lock"
_UNFINISHED = (f".*{PART}", ".*.partial", ".*.unfinished")  # of checkpoints, of text, and of earlier versions


@runtime_checkable
class HasRunFolder(Protocol):
    """A Trainer whose runs have a folder of their own whatever its loggers are."""

    def run_folder(self) -> Path: ...


@dataclass(frozen=True)
class FolderLock:
    """Held while a run writes to a folder. It ends with the process, however that ends."""

    lock: Lock

    @classmethod
    def acquire(cls, folder: Path) -> "FolderLock":
        """Locks a folder, which is made where it is missing.

        Raises:
            ConfigError: another process holds the lock, or the folder cannot be written.
        """
        try:
            return cls(Lock.acquire(folder / _LOCK))
        except Held as error:
            raise ConfigError(
                f"the run's folder is {folder}, to which {error.holder} is writing: wait for it, or "
                "give another folder as trainer.run_folder or by the logger's version"
            ) from error
        except OSError as error:
            raise unwritable(folder, error) from error

    def release(self) -> None:
        """Lets other runs in, and leaves no file behind."""
        self.lock.release()


def unwritable(folder: Path, error: OSError) -> ConfigError:
    """The sentence for a folder that cannot be made or written to."""
    return ConfigError(
        f"the run's folder is {folder}, which cannot be written ({error.strerror}): give another as trainer.run_folder"
    )


def next_version(parent: Path) -> Path:
    """Makes and returns the first folder `version_N` above all that exist."""
    parent.mkdir(parents=True, exist_ok=True)
    found = [re.fullmatch(r"version_(\d+)", path.name) for path in parent.iterdir()]
    for number in count(max((int(match[1]) for match in found if match), default=-1) + 1):
        folder = parent / f"version_{number}"
        try:
            folder.mkdir()
        except FileExistsError:  # of a run that starts at the same time
            continue
        return folder
    raise AssertionError("count() does not end")


def task_name(env: str) -> str:
    """The name of an environment without its namespace and version: `sokoban` of `tsr/Sokoban-v0`."""
    return re.sub(r"-v\d+$", "", re.split(r"[/:]", env)[-1]).lower() or "run"


def remove_if_empty(folder: Path) -> None:
    """Removes a folder that has nothing in it."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def remove_unfinished(folder: Path) -> None:
    """Removes what a killed process had not finished writing. The caller holds the lock."""
    for pattern in _UNFINISHED:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def clean_earlier(folder: Path) -> None:
    """Removes the unfinished files of an earlier run, unless it still writes."""
    if not (folder / _LOCK).exists():
        return
    try:
        lock = FolderLock.acquire(folder)
    except ConfigError:
        return
    for each in (folder, folder / "checkpoints"):
        remove_unfinished(each)
    lock.release()


def after_fit(folder: Path, checkpoint: Path | None, tensorboard: Path | None) -> str:
    """Lines that say where a fit's files are, with the commands that come next.

    Args:
        folder: of the run.
        checkpoint: its newest; None where none was kept.
        tensorboard: the folder of TensorBoard's runs, if it was logged to.
    """
    config = folder / "config.yaml"
    kept = "" if checkpoint is None else f", its policy in {checkpoint}"
    run = ["--config", str(config), "--ckpt_path", str(checkpoint)]
    can_run = checkpoint is not None and config.is_file()  # a run from Python has no configuration
    commands = [
        *([] if tensorboard is None else [["tensorboard", "--logdir", str(tensorboard)]]),
        *([["tsr", "validate", *run], ["tsr", "export", *run, "--output", "my_policy"]] if can_run else []),
    ]
    return "\n".join([f"the run is in {folder}{kept}", *(f"  {shlex.join(command)}" for command in commands)])


def after_validation(folder: Path) -> str | None:
    """The line that says where a validation's figures are; None where nothing was measured."""
    written = sorted(folder.glob("*.validate.json"))
    return f"the figures are in {', '.join(map(str, written))}" if written else None
