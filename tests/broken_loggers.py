"""A logger whose package is not installed, as Lightning's of W&B and MLflow are where theirs is not."""

from typing import NoReturn

from lightning.pytorch.loggers import CSVLogger


class NeedsPackage(CSVLogger):
    def __init__(self, save_dir: str = "runs") -> NoReturn:
        raise ModuleNotFoundError("Requirement 'figures>=2' not met. Try `pip install figures`")
