"""Checkpoints are of whole epochs, since a run goes on from one within an epoch by training it a second time."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from tsr_lightning.errors import ConfigError
from tsr_lightning.training.trainer import Trainer


def checkpoint(folder: Path, interval: int = 8, **arguments: Any) -> ModelCheckpoint:
    """As it is once a Trainer of ours has it."""
    callback = ModelCheckpoint(**arguments)
    settings = {"accelerator": "cpu", "devices": 1, "logger": False, "check_val_every_n_epoch": interval}
    Trainer(default_root_dir=folder, callbacks=[callback], **settings)
    return callback


@pytest.mark.parametrize(
    ("arguments", "every"),
    [
        ({}, 1),
        ({"every_n_epochs": 4}, 4),
        ({"monitor": "val/sampled/success_rate"}, 8),  # with the validations
        ({"monitor": "val/sampled/success_rate", "every_n_epochs": 2}, 2),
        ({"monitor": "val/sampled/success_rate", "save_on_train_epoch_end": True}, 1),
    ],
)
def test_they_are_written_at_ends_of_epochs(arguments: dict[str, Any], every: int, tmp_path: Path):
    callback = checkpoint(tmp_path, **arguments)
    assert callback._save_on_train_epoch_end is True  # Lightning's default is False, where not every epoch validates
    assert callback._every_n_epochs == every


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"save_on_train_epoch_end": False}, "ModelCheckpoint.save_on_train_epoch_end is False: give true"),
        ({"every_n_train_steps": 5}, "ModelCheckpoint.every_n_train_steps is 5: give every_n_epochs instead"),
    ],
)
def test_within_an_epoch_is_refused(arguments: dict[str, Any], sentence: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=sentence):
        checkpoint(tmp_path, **arguments)
