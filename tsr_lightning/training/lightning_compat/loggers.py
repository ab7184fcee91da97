"""The folders that loggers write to."""

import re
import warnings
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter


def folder_logger(trainer: Trainer) -> TensorBoardLogger | CSVLogger | None:
    """The first logger that has a folder for each run."""
    return next((one for one in trainer.loggers if isinstance(one, TensorBoardLogger | CSVLogger)), None)


def tensorboard_folder(trainer: Trainer) -> Path | None:
    """The folder of all runs of the first TensorBoard logger."""
    found = next((one for one in trainer.loggers if isinstance(one, TensorBoardLogger)), None)
    return None if found is None else Path(found.root_dir)


def has_fixed_version(logger: TensorBoardLogger | CSVLogger) -> bool:
    """True if the configuration says which version the run is; else it is the next one."""
    return logger._version is not None


def make_next_version(trainer: Trainer, logger: TensorBoardLogger | CSVLogger) -> Path:
    """Makes and returns the folder of a logger's next version, which no run that starts at the same time has. Further
    loggers of the same runs write to it too."""
    while True:
        folder = Path(logger.log_dir)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            logger._version = None
            continue
        break
    for other in trainer.loggers:
        if isinstance(other, TensorBoardLogger | CSVLogger) and not has_fixed_version(other):
            other._version = logger.version if other.root_dir == logger.root_dir else None
    return folder


def send_loggers_to(trainer: Trainer, folder: Path) -> None:
    """Lets loggers that would begin a next version write to this folder instead."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger | CSVLogger) and not has_fixed_version(logger):
            logger._root_dir, logger._name, logger._version = str(folder.parent), "", folder.name
            if isinstance(logger, CSVLogger):
                logger._save_dir = str(folder.parent)


def open_csv(trainer: Trainer) -> None:
    """Lets CSV loggers begin a file beside those of earlier runs in the folder, which Lightning would delete."""
    for logger in trainer.loggers:
        if isinstance(logger, CSVLogger):
            written = Path(logger.log_dir, ExperimentWriter.NAME_METRICS_FILE)
            if written.exists():
                written.rename(_next_beside(written))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Experiment logs directory .* exists and is not empty")
                _ = logger.experiment


def _next_beside(written: Path) -> Path:
    """`metrics-N.csv` with the number after the highest: earlier ones may be gone."""
    pattern = rf"{written.stem}-(\d+){re.escape(written.suffix)}"
    earlier = [match for path in written.parent.iterdir() if (match := re.fullmatch(pattern, path.name))]
    number = max((int(match[1]) for match in earlier), default=0) + 1
    return written.with_name(f"{written.stem}-{number}{written.suffix}")
