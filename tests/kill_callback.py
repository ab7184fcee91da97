"""A callback that kills its own process at a chosen moment, as the power going out would, and says what a run did."""

import os
import signal
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.training.hooks import RolloutProgress
from tsr_lightning.trajectory import Group


class Killer(Callback):
    """Writes one line per rollout to rollouts.txt, and at the end of the training its state to final.pt.

    Args:
        moment: when to die; `checkpoint` is between the writing of last.ckpt and its rename.
        epoch: in which epoch.
    """

    def __init__(self, moment: Literal["never", "rollout", "update", "checkpoint"] = "never", epoch: int = 2) -> None:
        self.moment = moment
        self.epoch = epoch
        self.waves = 0
        self.updates = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        really_replace = os.replace

        def replace(source: Any, target: Any, **kwargs: Any) -> None:
            if Path(target).name == "last.ckpt":
                self._die("checkpoint", trainer.current_epoch)
            really_replace(source, target, **kwargs)

        os.replace = replace

    def on_rollout_wave(self, trainer: Trainer, progress: RolloutProgress) -> None:
        if progress.what == "rollout":
            self.waves += 1
            if self.waves % 5 == 3:  # five turns, each a wave
                self._die("rollout", self._epoch(trainer))

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        with Path("rollouts.txt").open("a") as file:
            file.write(f"{self._epoch(trainer)}\n")
        self.updates = 0
        return groups

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.updates += 1
        if self.updates == 2:  # the first has moved the weights already
            self._die("update", trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        [optimizer] = trainer.optimizers
        state = {"weights": pl_module.state_dict(), "optimizer": optimizer.state_dict(), "updates": trainer.global_step}
        torch.save(state, "final.pt")

    @staticmethod
    def _epoch(trainer: Trainer) -> int:
        return trainer.fit_loop.epoch_progress.current.processed

    def _die(self, moment: str, epoch: int) -> None:
        if moment == self.moment and epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)
