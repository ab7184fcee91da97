"""How Lightning scales losses, counts steps and treats an epoch without a batch."""

from contextlib import AbstractContextManager

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

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
