"""The one way in which figures of rollouts, costs and evaluations reach the loggers."""

from collections.abc import Mapping

from lightning.pytorch import Trainer


def log_figures(trainer: Trainer, figures: Mapping[str, float], epochs: int) -> None:
    """Writes to all loggers at once, against epochs: `LightningModule.log` would write against optimizer steps.

    Args:
        trainer: whose loggers; on ranks other than 0 nothing is written.
        figures: by tag.
        epochs: epochs that the policy had been trained for.
    """
    if not trainer.is_global_zero:
        return
    for logger in trainer.loggers:
        logger.log_metrics(dict(figures), step=epochs)
        logger.save()
