"""How far a policy was trained, as its checkpoint tells."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK, tsr
from lightning.pytorch import Callback, LightningModule, Trainer
from optimizer_steps import QUIET, SIZES, parity_data

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.spec import PolicySpec
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


class Midway(Callback):
    """Saves within the first epoch, and counts the optimizer steps of each epoch that is trained."""

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch
        self.steps: dict[int, int] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, out: Any, batch: Any, i: int) -> None:
        if trainer.current_epoch == 0 and i == self.batch:
            trainer.save_checkpoint("midway.ckpt")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.steps[trainer.current_epoch] = self.steps.get(trainer.current_epoch, 0) + 1


def test_an_epoch_that_was_saved_within_is_trained_from_its_beginning(empty_folder: Path):
    """As SLURM's signal does; Lightning would go on counting micro-batches of an epoch whose rollout is another."""

    def fit(callback: Midway, **given: Any) -> None:
        data = parity_data(Updates(minibatches=2, min_trajectories=1, micro_batch_tokens=64))
        trainer = Trainer(max_epochs=2, callbacks=[callback], **QUIET)
        trainer.fit(Agent(PolicySpec(SIZES), GRPO()), datamodule=data, **given)

    whole, resumed = Midway(2), Midway()
    fit(whole)
    fit(resumed, ckpt_path="midway.ckpt")
    assert whole.steps[0] == 2
    assert resumed.steps[0] == 2
