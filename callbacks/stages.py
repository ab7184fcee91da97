"""Names of files by what a Trainer does, so that `tsr validate` overwrites nothing of the run."""

from lightning.pytorch import Trainer

from tsr_lightning.training.lightning_compat import is_fitting


def of_stage(trainer: Trainer, name: str) -> str:
    """The name in a fit; with `.validate` behind it otherwise."""
    return name if is_fitting(trainer) else f"{name}.validate"
