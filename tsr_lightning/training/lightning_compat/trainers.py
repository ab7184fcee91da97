"""What a Trainer is connected to (callbacks, data module, run folder, loggers, ranks), how it scales losses and counts
steps and epochs, and how SIGTERM ends a run."""

import logging
import os
import signal
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, Timer
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose, _SignalConnector
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from tsr_lightning.rollout.protocol import ValidationSchedule
from tsr_lightning.signals import terminate
from tsr_lightning.training.run_folder import HasRunFolder


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


def attach(trainer: Trainer, model: LightningModule, data: LightningDataModule) -> None:
    """Connects model and data to a trainer that runs no loop, as `fit` and `validate` do for theirs."""
    trainer.strategy.connect(model)
    model.trainer = trainer
    data.trainer = trainer
    trainer.datamodule = data  # type: ignore[attr-defined]


_NONE_BATCH = "train_dataloader yielded None. If this was on purpose, ignore this warning..."


def summed_loss(trainer: Trainer, loss: Tensor) -> Tensor:
    """A micro-batch's loss, scaled such that a step sums over micro-batches and ranks: Lightning divides by the number
    of micro-batches, and DDP by that of the ranks."""
    return loss * trainer.accumulate_grad_batches * trainer.world_size


def uncount_step(trainer: Trainer) -> None:
    """Takes an optimizer step that changed nothing out of the Trainer's count; called inside `optimizer_step`, after
    which Lightning counts it, so that `global_step`, the schedule, resumes and what is logged against updates count the
    steps that were taken."""
    progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
    trainer.fit_loop.epoch_loop._batches_that_stepped -= 1
    for counts in (progress.total, progress.current):
        counts.ready -= 1
        counts.completed -= 1


class BatchLimits(NamedTuple):
    """Arguments of a Trainer that cut epochs."""

    fast_dev_run: bool | int
    overfit_batches: int | float
    limit_train_batches: int | float  # a share as a float, a number of micro-batches as an int
    val_check_interval: int | float  # the same


def batch_limits(trainer: Trainer) -> BatchLimits:
    """Its limits, which Lightning sets in its constructor and does not declare."""
    return BatchLimits(**{name: vars(trainer)[name] for name in BatchLimits._fields})


def ends_within_epochs(trainer: Trainer) -> bool:
    """True if a Timer may stop the run after any micro-batch, as that of `max_time` does."""
    timers = [each for each in callbacks(trainer) if isinstance(each, Timer)]
    return any(timer._interval == Interval.step for timer in timers)


def schedules_accumulation(trainer: Trainer) -> bool:
    """True if a callback sets at the beginning of each epoch how many micro-batches an optimizer step has."""
    return any(isinstance(each, GradientAccumulationScheduler) for each in callbacks(trainer))


def skips_overflows(trainer: Trainer) -> bool:
    """Whether a scaler of losses looks for gradients that are not finite, and leaves out their steps."""
    precision = trainer.precision_plugin
    return isinstance(precision, MixedPrecision) and precision.scaler is not None


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


_RANK_ZERO = logging.getLogger("lightning.pytorch.utilities.rank_zero")


def _without_its_sentence(record: logging.LogRecord) -> bool:
    """Drops what Lightning says of Ctrl-C: the run's own sentence follows (`stopping.py`)."""
    return "Detected KeyboardInterrupt" not in record.getMessage()


def processes_started(trainer: Trainer) -> int:
    """The processes that torchrun, srun or another launcher has started, this one among them; 1 without a launcher,
    where Lightning starts the others."""
    environment = trainer._accelerator_connector.cluster_environment
    if not environment.creates_processes_externally:
        return 1
    if isinstance(environment, SLURMEnvironment):  # a job may have tasks for later steps, and run this without srun
        return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    return environment.world_size()


def are_ranks_of_one_run(trainer: Trainer, started: int) -> bool:
    """Whether the processes of a launcher are ranks of one run. Under one device Lightning does not check this."""
    environment = trainer._accelerator_connector.cluster_environment
    try:
        environment.validate_settings(trainer.num_devices, trainer.num_nodes)
    except ValueError:
        return False
    return trainer.world_size == started


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


def begin_epoch_anew(checkpoint: dict[str, Any]) -> None:
    """Sets a checkpoint that was written within an epoch, as on SIGUSR1, back to the epoch's beginning: its rollout is
    made anew, and Lightning would count micro-batches from where the other one was."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    if progress["current"]["ready"] and not progress["is_last_batch"]:
        progress["current"] = dict.fromkeys(progress["current"], 0)
        progress["total"] = dict.fromkeys(progress["total"], progress["total"]["ready"])  # none is half done


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


def validation_schedule(trainer: Trainer) -> ValidationSchedule | None:
    """When a fit validates; None where the interval or the end of the fit is not counted in epochs."""
    interval, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
    return None if interval is None or epochs is None or epochs < 0 else ValidationSchedule(interval, epochs)
