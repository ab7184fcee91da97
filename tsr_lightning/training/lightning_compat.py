"""Every use of Lightning's internals and of what it does in a way of its own: what to check when it is upgraded."""

import logging
import os
import re
import signal
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose, _SignalConnector
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from tsr_lightning.errors import require
from tsr_lightning.signals import terminate, uninterrupted
from tsr_lightning.training import checkpoints
from tsr_lightning.training.run_folder import HasRunFolder

BEST_POLICY = "best_policy"  # name of CollapseGuard's checkpoint, which no ModelCheckpoint owns
_NONE_BATCH = "train_dataloader yielded None. If this was on purpose, ignore this warning..."


def callbacks(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined]


def datamodule(trainer: Trainer) -> LightningDataModule | None:
    return trainer.datamodule  # type: ignore[attr-defined]


def is_fitting(trainer: Trainer) -> bool:
    """Whether `fit` runs, its validations included."""
    return trainer.state.fn == TrainerFn.FITTING


def run_folder(trainer: Trainer) -> Path | None:
    """The folder of a run's own files, called on every rank; None under a Trainer of Lightning's without a logger."""
    if isinstance(trainer, HasRunFolder):
        return trainer.run_folder()
    folder = trainer.log_dir  # which Lightning broadcasts
    return Path(folder) if trainer.loggers and folder is not None else None


def log_figures(trainer: Trainer, figures: Mapping[str, float], epochs: int) -> None:
    """Writes figures by tag to all loggers at once, on rank 0, against the epochs that the policy had been trained for:
    `LightningModule.log` would write against optimizer steps."""
    if not trainer.is_global_zero:
        return
    for logger in trainer.loggers:
        logger.log_metrics(dict(figures), step=epochs)
        logger.save()


def leave_buffers_alone(module: LightningModule) -> None:
    """DDP would broadcast rank 0's buffers in every forward pass, those of a validation too: a rank without a held-out
    instance makes none, and all others would wait for it. Ours are constants, which every rank computes."""
    names = [name for name, _ in module.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)


def sharding_mesh(module: LightningModule) -> DeviceMesh | None:
    """The ranks over which the strategy shards the weights; None where it does not."""
    mesh = module.device_mesh
    return None if mesh is None else mesh["data_parallel"]


# -- position ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """How far a policy has been trained: what its figures are logged against.

    A rollout of epoch e, and an evaluation after e epochs, are of the same policy, so both are logged at e.
    """

    epochs: int
    updates: int

    @classmethod
    def in_checkpoint(cls, checkpoint: dict[str, Any]) -> "Position":
        """Of the policy in a checkpoint, whose own "epoch" does not count the one that it was written in. One that was
        written at a rollout has begun an epoch without a batch, which does not count."""
        loop = checkpoint["loops"]["fit_loop"]
        has_batch = loop["epoch_loop.batch_progress"]["current"]["ready"] > 0
        epochs = loop["epoch_progress"]["current"]["ready" if has_batch else "processed"]
        return cls(epochs=epochs, updates=checkpoint["global_step"])


def epochs_at_rollout(trainer: Trainer) -> int:
    """Epochs trained before the current rollout; `trainer.current_epoch` is one behind after a resume."""
    return trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]  # declared as its base


def epoch_limit(trainer: Trainer) -> int | None:
    """The epochs that a fit trains for at most; None where their number is not limited."""
    return None if trainer.max_epochs is None or trainer.max_epochs < 0 else trainer.max_epochs


def nothing_to_train(trainer: Trainer) -> str | None:
    """Says why a fit trains no further epoch, and how to go on; None where it does. Lightning asks for the first batch
    before it looks."""
    epochs, limit = epochs_at_rollout(trainer), epoch_limit(trainer)
    if limit == 0:
        return "trainer.max_epochs is 0: nothing is rolled out or trained"
    if limit is not None and epochs >= limit:
        return (
            f"the run is finished: trainer.max_epochs is {limit}, and the policy has been trained for {epochs} epochs; "
            f"go on with more, as by --trainer.max_epochs {2 * epochs}"
        )
    if 0 <= trainer.max_steps <= trainer.global_step:
        return (
            f"the run is finished: trainer.max_steps is {trainer.max_steps}, and the policy has been trained for "
            f"{trainer.global_step} updates; go on with more"
        )
    return None


def stopped_by(trainer: Trainer) -> str | None:
    """What ended a fit before `max_epochs`; None where nothing did. Called at the end of the training."""
    limit = epoch_limit(trainer)
    if limit is not None and epochs_at_rollout(trainer) >= limit:
        return None
    if trainer.should_stop:
        return "a callback"
    return "trainer.max_steps" if 0 <= trainer.max_steps <= trainer.global_step else None


def position_at_validation(trainer: Trainer, loaded: Position | None) -> Position:
    """Counts the epoch that the validation closes, unlike `trainer.current_epoch`. `loaded` is the position in the
    checkpoint that was loaded: `validate` does not restore the Trainer's own counts."""
    if loaded is not None and not is_fitting(trainer):
        return loaded
    return Position(epochs=trainer.fit_loop.epoch_progress.current.ready, updates=trainer.global_step)


@dataclass(frozen=True, slots=True)
class ValidationSchedule:
    """When a fit validates: after every `interval` epochs."""

    interval: int
    max_epochs: int

    @classmethod
    def of(cls, trainer: Trainer) -> "ValidationSchedule | None":
        """None where the interval or the end of the fit is not counted in epochs."""
        interval, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
        return None if interval is None or epochs is None or epochs < 0 else cls(interval, epochs)

    @property
    def last(self) -> int:
        """The epochs trained at the last validation."""
        return self.max_epochs // self.interval * self.interval


# -- updates ----------------------------------------------------------------------------------------------------------


def summed_loss(trainer: Trainer, loss: Tensor) -> Tensor:
    """A micro-batch's loss, scaled such that a step sums over micro-batches and ranks: Lightning divides by the number
    of micro-batches, and DDP by that of the ranks."""
    return loss * trainer.accumulate_grad_batches * trainer.world_size


def uncount_step(trainer: Trainer) -> None:
    """Takes an optimizer step that changed nothing out of the Trainer's count; called inside `optimizer_step`, after
    which Lightning counts it, so that `global_step`, the schedule and resumes count the steps that were taken."""
    progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
    for counts in (progress.total, progress.current):
        counts.ready -= 1
        counts.completed -= 1


def training_precision(trainer: Trainer) -> AbstractContextManager[None]:
    """The precision of `training_step`, for forward passes outside it."""
    return trainer.precision_plugin.forward_context()


def prepare_empty_epoch(trainer: Trainer) -> None:
    """Lets an epoch whose one batch is None validate and save as any other.

    An epoch without a batch would end the training, and None is a batch that Lightning steps over, with a warning. A
    ModelCheckpoint saves nothing where no optimizer step was taken since it last saved.
    """
    trainer.fit_loop.epoch_loop._warning_cache.add(_NONE_BATCH)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback._last_global_step_saved = -1


# -- checkpoints ------------------------------------------------------------------------------------------------------


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
    epoch of a run is saved as `last.ckpt` whatever `every_n_epochs` is.
    """

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
        resumed = Path(trainer.ckpt_path or "").resolve()
        if any(resumed.parent == Path(one.dirpath or "").resolve() for one in _model_checkpoints(trainer)):
            trainer.ckpt_path = None  # it is restored, and what ckpt_path names is never removed

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not _is_last_epoch(trainer):
            return
        for callback in _model_checkpoints(trainer):
            every = callback._every_n_epochs
            if (
                callback.save_last and every >= 1 and (trainer.current_epoch + 1) % every
            ):  # the others save by themselves
                callback._save_last_checkpoint(trainer, callback._monitor_candidates(trainer))


def _is_last_epoch(trainer: Trainer) -> bool:
    """True if fit ends after this epoch. Call it in `on_train_epoch_end`, where `current_epoch` is still this one."""
    limit = epoch_limit(trainer)
    is_limit = limit is not None and trainer.current_epoch + 1 >= limit
    return is_limit or trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step


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
    """Whether one was trained for longer; an epoch without a signal makes no update."""
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


# -- signals ----------------------------------------------------------------------------------------------------------


_RANK_ZERO = logging.getLogger("lightning.pytorch.utilities.rank_zero")


def _without_its_sentence(record: logging.LogRecord) -> bool:
    """Drops what Lightning says of Ctrl-C: the run's own sentence follows (`stopping.py`)."""
    return "Detected KeyboardInterrupt" not in record.getMessage()


class Signals(_SignalConnector):
    """Ends a run where SIGTERM arrives, as Ctrl-C does. Lightning waits for the end of a batch, and a rollout or an
    evaluation may take longer than the sender waits; between several ranks it sends in the handler, into whatever they
    are sending.

    Where SLURM requeues the job, its own handlers stay alone in force: they write a checkpoint at its signal, let
    SIGTERM pass meanwhile, and end the run at the end of a batch.
    """

    def register_signal_handlers(self) -> None:
        super().register_signal_handlers()
        _RANK_ZERO.addFilter(_without_its_sentence)
        handler = signal.getsignal(signal.SIGTERM)
        if isinstance(handler, _HandlersCompose):
            others = [one for one in handler.signal_handlers if one is not terminate]
            environment = self.trainer._accelerator_connector.cluster_environment
            if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
                others = [*(one for one in others if one != self._sigterm_notifier_fn), self._stop]
            self._register_signal(signal.SIGTERM, _HandlersCompose(others))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        launcher = self.trainer.strategy.launcher
        if launcher is not None:
            launcher.kill(number)
        terminate(number, frame)


# -- loggers ----------------------------------------------------------------------------------------------------------


def folder_logger(trainer: Trainer) -> TensorBoardLogger | CSVLogger | None:
    """The first logger that has a folder for each run."""
    return next((one for one in trainer.loggers if isinstance(one, TensorBoardLogger | CSVLogger)), None)


def tensorboard_folder(trainer: Trainer) -> Path | None:
    """The folder of all runs of the first TensorBoard logger."""
    found = next((one for one in trainer.loggers if isinstance(one, TensorBoardLogger)), None)
    return None if found is None else Path(found.root_dir)


def has_fixed_version(logger: TensorBoardLogger | CSVLogger) -> bool:
    """True if the configuration says which version the run is; else it is the next one."""
    return logger._version is not None


def make_next_version(trainer: Trainer, logger: TensorBoardLogger | CSVLogger) -> Path:
    """Makes and returns the folder of a logger's next version, which no run that starts at the same time has. Further
    loggers of the same runs write to it too."""
    while True:
        folder = Path(logger.log_dir)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            logger._version = None
            continue
        break
    for other in trainer.loggers:
        if isinstance(other, TensorBoardLogger | CSVLogger) and not has_fixed_version(other):
            other._version = logger.version if other.root_dir == logger.root_dir else None
    return folder


def send_loggers_to(trainer: Trainer, folder: Path) -> None:
    """Lets loggers that would begin a next version write to this folder instead."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger | CSVLogger) and not has_fixed_version(logger):
            logger._root_dir, logger._name, logger._version = str(folder.parent), "", folder.name
            if isinstance(logger, CSVLogger):
                logger._save_dir = str(folder.parent)


def open_csv(trainer: Trainer) -> None:
    """Lets CSV loggers begin a file beside those of earlier runs in the folder, which Lightning would delete."""
    for logger in trainer.loggers:
        if isinstance(logger, CSVLogger):
            written = Path(logger.log_dir, ExperimentWriter.NAME_METRICS_FILE)
            if written.exists():
                earlier = len(list(written.parent.glob(f"{written.stem}-*{written.suffix}")))
                written.rename(written.with_name(f"{written.stem}-{earlier + 1}{written.suffix}"))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Experiment logs directory .* exists and is not empty")
                _ = logger.experiment


def attach(trainer: Trainer, model: LightningModule, data: LightningDataModule) -> None:
    """Connects model and data to a trainer that runs no loop, as `fit` and `validate` do for theirs."""
    trainer.strategy.connect(model)
    model.trainer = trainer
    data.trainer = trainer
    trainer.datamodule = data  # type: ignore[attr-defined]
