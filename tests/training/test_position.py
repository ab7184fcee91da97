"""How far a policy was trained, as its checkpoint tells."""

from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from commands import QUICK, tsr
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.training.agent import Agent
from tsr_lightning.training.lightning_compat import Position
from tsr_lightning.trajectory import Group


class Saver(Callback):
    """Saves at every rollout, validation and end of an epoch, by the epochs trained."""

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        trainer.save_checkpoint(f"rollout-{trainer.global_step // 2}.ckpt")
        return groups

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(f"validation-{trainer.global_step // 2}.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(f"end-{trainer.global_step // 2}.ckpt")


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_checkpoint_knows_how_far_its_policy_was_trained_wherever_it_was_saved(empty_folder: Path):
    run = (
        *("fit", "--config", "sokoban.yaml", *QUICK, "--data.instances", "4", "--trainer.check_val_every_n_epoch", "1"),
        *("--trainer.callbacks", f'[{{"class_path": "{__name__}.Saver"}}]', "--trainer.num_sanity_val_steps", "-1"),
    )

    def positions() -> dict[str, tuple[int, int]]:
        found = ((path.stem, torch.load(path, weights_only=True)) for path in Path().glob("*.ckpt"))
        return {name: astuple(Position.in_checkpoint(checkpoint)) for name, checkpoint in found}

    tsr(*run, "--trainer.max_epochs", "2")
    kinds = {"rollout": range(2), "validation": range(3), "end": range(1, 3)}
    assert positions() == {f"{kind}-{epochs}": (epochs, 2 * epochs) for kind, own in kinds.items() for epochs in own}
    tsr(*run, "--trainer.max_epochs", "3", "--ckpt_path", "end-1.ckpt")
    kinds = {"rollout": range(3), "validation": range(4), "end": range(1, 4)}
    assert positions() == {f"{kind}-{epochs}": (epochs, 2 * epochs) for kind, own in kinds.items() for epochs in own}
