"""How far a policy has been trained, and when a fit validates and ends."""

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer

from tsr_lightning.rollout.protocol import ValidationSchedule
from tsr_lightning.training.lightning_compat.trainers import is_fitting


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


def validation_schedule(trainer: Trainer) -> ValidationSchedule | None:
    """When a fit validates; None where the interval or the end of the fit is not counted in epochs."""
    interval, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
    return None if interval is None or epochs is None or epochs < 0 else ValidationSchedule(interval, epochs)
