"""The axis of everything that is not said per update: the epochs of training that the policy has had.

A rollout of epoch e, and the measurement after e epochs, are of the same policy, so they share the abscissa e: the
start is at 0, the validation that closes the first epoch at 1. `trainer.current_epoch` counts neither: it lags where a
run was resumed, and at a validation does not count the epoch that is being closed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer


def epochs_at_rollout(trainer: Trainer) -> int:
    return trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]  # declared as its base


@dataclass(frozen=True, slots=True)
class Position:
    """How far a policy has been trained."""

    epochs: int
    updates: int

    @classmethod
    def in_checkpoint(cls, checkpoint: dict[str, Any]) -> "Position":
        """Of the policy in a checkpoint of Lightning's; its own "epoch" leaves out the one that it was written in."""
        begun = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["ready"]
        return cls(epochs=begun, updates=checkpoint["global_step"])


def position_at_validation(trainer: Trainer, loaded: Position | None) -> Position:
    """At a validation, whose epoch counts. `validate` does not restore the trainer's own counts from a checkpoint, so
    there the position that was `loaded` holds.
    """
    if loaded is not None and trainer.state.fn != "fit":
        return loaded
    return Position(epochs=trainer.fit_loop.epoch_progress.current.ready, updates=trainer.global_step)


def log_figures(trainer: Trainer, figures: Mapping[str, float], epochs: int) -> None:
    """Writes to all loggers past Lightning's own `log`, whose abscissa counts updates."""
    if not trainer.is_global_zero:
        return
    for logger in trainer.loggers:
        logger.log_metrics(dict(figures), step=epochs)
        logger.save()
