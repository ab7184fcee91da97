"""Checkpoints are of whole epochs, since a run goes on from one within an epoch by training it a second time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

from tsr_lightning.errors import ConfigError
from tsr_lightning.training import checkpoints
from tsr_lightning.training.lightning_compat import Position
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


class Plain(BoringModel):
    """Logs a figure that never becomes better, and has no schedule, which Lightning steps after it has saved."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def on_train_epoch_end(self) -> None:
        self.log("figure", 1.0)


class Ending(Callback):
    """Ends the run after its third epoch, by an error or as callbacks do, and keeps the epochs that were trained."""

    def __init__(self, error: str = "") -> None:
        self.error, self.epochs = error, []

    def on_train_epoch_end(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        self.epochs.append(trainer.current_epoch)
        if trainer.current_epoch == 2 and self.error:
            raise RuntimeError(self.error)
        trainer.should_stop = trainer.current_epoch == 2


def last_of_run(folder: Path, ending: Ending, path: Path | None = None, epochs: int = 9, **arguments: Any) -> Path:
    """Trains, and returns the path of `last.ckpt`."""
    torch.manual_seed(1)
    settings = {"accelerator": "cpu", "devices": 1, "logger": False, "limit_val_batches": 0, "limit_train_batches": 2}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    saving = ModelCheckpoint(**{"save_last": True, **arguments})
    trainer = Trainer(run_folder=str(folder), max_epochs=epochs, callbacks=[saving, ending], **settings, **quiet)
    trainer.fit(Plain(), ckpt_path=path)
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(
    "arguments",
    [
        {"every_n_epochs": 5},
        {"every_n_epochs": 2},
        {"every_n_epochs": 2, "save_last": "link"},
        {"monitor": "figure", "save_on_train_epoch_end": True},
    ],
)
def test_an_epoch_after_which_a_callback_ends_the_run_is_saved(arguments: dict[str, Any], tmp_path: Path):
    """As a save at the epoch's end would have been, so that a run goes on from it as from any other."""
    every, ending = checkpoints.load(last_of_run(tmp_path / "every", Ending())), Ending()
    last = last_of_run(tmp_path / "run", ending, **arguments)
    saved = checkpoints.load(last)
    assert not last.is_symlink()
    assert ending.epochs == [0, 1, 2]
    assert Position.in_checkpoint(saved).epochs == 3
    for name in ("epoch", "global_step", "loops", "optimizer_states"):
        assert saved[name] == every[name]
    assert all(torch.equal(weight, every["state_dict"][name]) for name, weight in saved["state_dict"].items())
    going_on = Ending()
    again = last_of_run(tmp_path / "run", going_on, last, epochs=6, **arguments)
    assert going_on.epochs == [3, 4, 5]
    assert Position.in_checkpoint(checkpoints.load(again)).epochs == 6


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_an_epoch_that_an_error_ends_is_not_saved(tmp_path: Path):
    with pytest.raises(RuntimeError, match="broken"):
        last_of_run(tmp_path, Ending("broken"), every_n_epochs=2)
    assert Position.in_checkpoint(checkpoints.load(tmp_path / "checkpoints" / "last.ckpt")).epochs == 2
