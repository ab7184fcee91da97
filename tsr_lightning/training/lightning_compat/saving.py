"""What is saved when and where: checkpoint files, and the folders of ModelCheckpoints."""

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from tsr_lightning.errors import require
from tsr_lightning.signals import uninterrupted
from tsr_lightning.training import checkpoints
from tsr_lightning.training.lightning_compat.trainers import Position, epoch_limit, epochs_at_rollout, is_fitting

BEST_POLICY = "best_policy"  # name of CollapseGuard's checkpoint, which no ModelCheckpoint owns


class CheckpointFiles(CheckpointIO):
    """Reads and writes checkpoints as `checkpoints.py` does: Lightning's own go through memory and $TMPDIR."""

    def __init__(self) -> None:
        self.newest: tuple[Path, Position] | None = None  # that this process has written

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        with uninterrupted():  # a signal costs no checkpoint
            checkpoints.write(checkpoint, Path(path))
            self.newest = Path(path), Position.in_checkpoint(checkpoint)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return checkpoints.load(Path(path), weights_only=weights_only is not False)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class OneStart(Callback):
    """Leaves out the evaluation of the start where a run goes on: Lightning would make it again, of the policy that the
    checkpoint holds, which the earlier process has evaluated. Refuses fewer epochs than the checkpoint has."""

    def __init__(self) -> None:
        self._steps: int | float | None = None  # as configured, while they are none

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not is_fitting(trainer):
            return
        limit, epochs = epoch_limit(trainer), Position.in_checkpoint(checkpoint).epochs
        remedy = f"the checkpoint's policy has been trained for {epochs} epochs, so give more, such as {2 * epochs}"
        require(limit is None or epochs <= limit, "trainer.max_epochs", limit, remedy)
        if self._steps is None:
            self._steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, 0

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._steps is not None:
            trainer.num_sanity_val_steps, self._steps = self._steps, None


class CheckpointFolders(Callback):
    """Keeps the folders of ModelCheckpoints in order when a run goes on.

    A folder may have been moved: paths in the checkpoint's state become those of where it is now. A run that goes on in
    another folder leaves what the earlier one saved, and has saved nothing of its own yet. `last.ckpt` is written
    over, where Lightning would write `last-v1.ckpt` beside one that it does not remember. What a killed run had saved
    after the checkpoint that it goes on from, and before its `last.ckpt`, is removed; it is saved again. The file
    that a run goes on from in its own folder is replaced as any other, where Lightning would keep it for good. The last
    epoch of a run is saved as `last.ckpt` whatever `every_n_epochs` is, and whatever ended the run but an exception.
    """

    def __init__(self) -> None:
        self._began = 0  # epochs that were trained before this fit

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        resumed, states = Path(trainer.ckpt_path or "").resolve(), checkpoint.get("callbacks", {})
        for callback in _model_checkpoints(trainer):
            if callback.state_key in states:
                goes_on = resumed.parent == Path(callback.dirpath or "").resolve()
                state = states[callback.state_key]
                states[callback.state_key] = moved(state, str(callback.dirpath)) if goes_on else callback.state_dict()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for callback in _model_checkpoints(trainer):
            if callback.dirpath is not None and trainer.ckpt_path is not None and trainer.is_global_zero:
                for path in _saved_after(callback, Path(trainer.ckpt_path)):
                    path.unlink()
            last = f"{callback.CHECKPOINT_NAME_LAST}{callback.FILE_EXTENSION}"
            callback.last_model_path = os.path.join(callback.dirpath or "", last)
        self._began = epochs_at_rollout(trainer)
        resumed = Path(trainer.ckpt_path or "").resolve()
        if any(resumed.parent == Path(one.dirpath or "").resolve() for one in _model_checkpoints(trainer)):
            trainer.ckpt_path = None  # it is restored, and what ckpt_path names is never removed

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Not at the epoch's end, where a callback may yet end the run, or change the policy."""
        if epochs_at_rollout(trainer) == self._began:
            return
        for callback in _model_checkpoints(trainer):
            if callback.save_last and not _has_saved(callback, trainer):
                with _at_end_of_epoch(trainer):
                    _save_as_last(callback, trainer)


def _has_saved(callback: ModelCheckpoint, trainer: Trainer) -> bool:
    """True if a ModelCheckpoint saved the last epoch."""
    every = callback._every_n_epochs  # since the step alone does not tell: an epoch may have no update
    is_due = every < 1 or epochs_at_rollout(trainer) % every == 0
    return is_due and callback._last_global_step_saved == trainer.global_step


def _save_as_last(callback: ModelCheckpoint, trainer: Trainer) -> None:
    if callback.save_last == "link":  # Lightning would link to an earlier epoch's
        callback._save_checkpoint(trainer, callback.last_model_path)
    else:
        callback._save_last_checkpoint(trainer, callback._monitor_candidates(trainer))


@contextmanager
def _at_end_of_epoch(trainer: Trainer) -> Iterator[None]:
    """Sets the count of epochs back to what it is where ModelCheckpoints save: a run goes on from a checkpoint as from
    there."""
    progress = trainer.fit_loop.epoch_progress
    counts = [(each, each.completed) for each in (progress.total, progress.current)]
    for each, _ in counts:
        each.completed = each.processed - 1  # type: ignore[attr-defined]  # declared as its base
    try:
        yield
    finally:
        for each, completed in counts:
            each.completed = completed


def moved(state: dict[str, Any], folder: str) -> dict[str, Any]:
    """The state of a ModelCheckpoint with all paths in another folder."""
    before = state["dirpath"]

    def inside(path: str) -> str:
        return os.path.join(folder, os.path.relpath(path, before)) if path else path

    return {
        **state,
        "dirpath": folder,
        "best_k_models": {inside(path): score for path, score in state["best_k_models"].items()},
        **{key: inside(state[key]) for key in ("best_model_path", "kth_best_model_path", "last_model_path")},
    }


def _model_checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]


def save_at_ends_of_epochs(trainer: Trainer) -> None:
    """Lets ModelCheckpoints save where an epoch has ended. Lightning goes on from what it saves in a validation, its
    default where not every epoch has one, by training that validation's epoch a second time.

    Raises:
        ConfigError: one is told to save within an epoch.
    """
    for callback in _model_checkpoints(trainer):
        asked, steps = callback._save_on_train_epoch_end, callback._every_n_train_steps
        remedy = "give true: a run that went on from such a checkpoint would train its epoch a second time"
        require(asked is not False, "ModelCheckpoint.save_on_train_epoch_end", False, remedy)
        remedy = "give every_n_epochs instead: a run that went on from within an epoch would train it a second time"
        require(not steps, "ModelCheckpoint.every_n_train_steps", steps, remedy)
        if asked is None:
            callback._save_on_train_epoch_end = True
            if callback.monitor is not None and callback._every_n_epochs == 1:  # it may know no figure in between
                callback._every_n_epochs = trainer.check_val_every_n_epoch or 1


def _is_ahead(one: Position, other: Position) -> bool:
    """True if one checkpoint was trained for longer than another; an epoch without a signal makes no update."""
    return (one.updates, one.epochs) > (other.updates, other.epochs)


def _saved_after(callback: ModelCheckpoint, last: Path) -> list[Path]:
    """Checkpoints that a killed run saved just before it would have written `last.ckpt`: no state names them, and their
    policy was trained for longer than that of `last.ckpt`, with which the run goes on."""
    folder = Path(callback.dirpath or "").resolve()
    if last.parent.resolve() != folder or last.stem != callback.CHECKPOINT_NAME_LAST or not last.is_file():
        return []
    state = [callback.best_model_path, callback.kth_best_model_path, *callback.best_k_models]
    known = {last.resolve(), *(Path(path).resolve() for path in state)}
    position, written = Position.in_checkpoint(checkpoints.load(last, mmap=True)), last.stat().st_mtime_ns
    return [
        path
        for path in sorted(folder.glob(f"*{callback.FILE_EXTENSION}"))
        if path not in known
        and not path.name.startswith(BEST_POLICY)
        and path.stat().st_mtime_ns > written
        and checkpoints.is_whole(path)
        and _is_ahead(Position.in_checkpoint(checkpoints.load(path, mmap=True)), position)
    ]


def use_run_folder(trainer: Trainer, folder: Path) -> None:
    """Lets checkpoints that are given no folder go to the run's, where Lightning would take the first logger's."""
    for callback in _model_checkpoints(trainer):
        if callback.dirpath is None:
            callback.dirpath = str(folder / "checkpoints")
            expected = f"Checkpoint directory {re.escape(callback.dirpath)} exists and is not empty"
            warnings.filterwarnings("ignore", expected)  # where the run goes on in its folder


def checkpoint_folders(trainer: Trainer) -> list[Path]:
    """The folders that the configuration gives to checkpoints."""
    return [Path(callback.dirpath) for callback in _model_checkpoints(trainer) if callback.dirpath is not None]
