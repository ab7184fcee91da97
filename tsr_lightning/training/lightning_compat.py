"""Every use of Lightning's internals and of what it does in a way of its own: what to check when it is upgraded."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

_NONE_BATCH = "train_dataloader yielded None. If this was on purpose, ignore this warning..."


def callbacks(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined]


def datamodule(trainer: Trainer) -> LightningDataModule | None:
    return trainer.datamodule  # type: ignore[attr-defined]


def is_fitting(trainer: Trainer) -> bool:
    """Whether `fit` runs, its validations included."""
    return trainer.state.fn == TrainerFn.FITTING


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


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that a killed run leaves the last checkpoint whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        target = Path(path)
        unfinished = target.with_name(f".{target.name}.unfinished")
        super().save_checkpoint(checkpoint, unfinished, storage_options)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, target)


def use_atomic_checkpoints(trainer: Trainer) -> None:
    trainer.strategy.checkpoint_io = AtomicCheckpointIO()


def attach(trainer: Trainer, model: LightningModule, data: LightningDataModule) -> None:
    """Connects model and data to a trainer that runs no loop, as `fit` and `validate` do for theirs."""
    trainer.strategy.connect(model)
    model.trainer = trainer
    data.trainer = trainer
    trainer.datamodule = data  # type: ignore[attr-defined]
