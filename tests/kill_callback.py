"""A callback that ends its own process by a signal at a chosen moment, and writes down what a run did."""

import os
import signal
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.search.progress import Progress
from tsr_lightning.training.lightning_compat import epochs_at_rollout, position_at_validation
from tsr_lightning.trajectory import Group


class Killer(Callback):
    """Writes one line per rollout to rollouts.txt, one per validation to validations.txt, and the state at the end of
    the training to final.pt.

    Args:
        moment: when to kill; `checkpoint` is between the writing of last.ckpt and its rename.
        epoch: in which epoch.
        by: the signal.
    """

    def __init__(
        self,
        moment: Literal["never", "rollout", "update", "validation", "checkpoint"] = "never",
        epoch: int = 2,
        by: Literal["SIGKILL", "SIGTERM", "SIGINT"] = "SIGKILL",
    ) -> None:
        self.moment = moment
        self.epoch = epoch
        self.by = signal.Signals[by]
        self.waves = 0
        self.updates = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        original = os.replace

        def replace(source: Any, target: Any, **kwargs: Any) -> None:
            if Path(target).name == "last.ckpt":
                self._kill_at("checkpoint", trainer.current_epoch)
            original(source, target, **kwargs)

        os.replace = replace

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None:
        if progress.phase == TRAINING_ROLLOUT:
            self.waves += 1
            if self.waves % 5 == 3:  # five turns, each a wave
                self._kill_at("rollout", epochs_at_rollout(trainer))

        elif not trainer.sanity_checking:
            self._kill_at("validation", trainer.current_epoch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with Path("validations.txt").open("a") as file:
            file.write(f"{position_at_validation(trainer, None).epochs}\n")

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        with Path("rollouts.txt").open("a") as file:
            file.write(f"{epochs_at_rollout(trainer)}\n")
        self.updates = 0
        return groups

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.updates += 1
        if self.updates == 2:  # the first has already changed the weights
            self._kill_at("update", trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        [optimizer] = trainer.optimizers
        state = {"weights": pl_module.state_dict(), "optimizer": optimizer.state_dict(), "updates": trainer.global_step}
        torch.save(state, "final.pt")

    def _kill_at(self, moment: str, epoch: int) -> None:
        if moment == self.moment and epoch == self.epoch:
            os.kill(os.getpid(), self.by)
