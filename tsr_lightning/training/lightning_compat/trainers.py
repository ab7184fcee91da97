"""What a Trainer is connected to (callbacks, data module, run folder, loggers, ranks), how it scales losses and counts
steps, and how SIGTERM ends a run."""

import logging
import signal
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose, _SignalConnector
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

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
