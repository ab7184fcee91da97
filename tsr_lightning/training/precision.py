"""Refuses precisions of the Trainer under which weights hardly train."""

from lightning.pytorch import Trainer

from tsr_lightning.errors import require

_CONVERTING = {"bf16-true", "16-true", "transformer-engine", "transformer-engine-float16"}


def check_precision(trainer: Trainer) -> None:
    """Raises a ConfigError for a precision that turns the trained weights, adapters too, into 16 bits."""
    remedy = (
        "it turns trained weights and adapters into 16 bits, which AdamW hardly moves (2% of the movement asked for at "
        "a learning rate of 1e-6), so give bf16-mixed for speed, or 32-true"
    )
    require(trainer.precision not in _CONVERTING, "trainer.precision", trainer.precision, remedy)
