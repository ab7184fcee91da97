"""A callback that kills one rank of a run once, a short while after one of the events that it counts."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from tsr_lightning.training.lightning_compat import epochs_at_rollout


class KillOneRank(Callback):
    """Writes events.RANK (how many there were), rollouts.txt (attempt and epoch of rank 0's rollouts) and final.pt.

    Args:
        folder: to write to; the file killed.txt in it says that the kill has happened.
        rank: to kill.
        event: after which, from 1 on; None kills nothing.
        within: seconds after the event, of which a random share is waited, so that any line may be running.
        seed: of that share.
    """

    def __init__(self, folder: str, rank: int = 0, event: int | None = None, within: float = 0.03, seed: int = 0):
        self.folder, self.rank, self.event, self.within, self.seed = Path(folder), rank, event, within, seed
        self.events = 0

    def _count(self, trainer: Any) -> None:
        self.events += 1
        killed = self.folder / "killed.txt"
        if self.events == self.event and trainer.global_rank == self.rank and not killed.exists():
            killed.write_text(str(self.events))
            threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        time.sleep(random.Random(self.seed).uniform(0, self.within))
        os.kill(os.getpid(), signal.SIGKILL)

    def on_rollout_wave(self, trainer, progress) -> None:
        self._count(trainer)

    def on_rollout_end(self, trainer, agent, groups):
        self._count(trainer)
        if trainer.global_rank == 0:
            with (self.folder / "rollouts.txt").open("a") as file:
                file.write(f"{os.getpid()} {epochs_at_rollout(trainer)}\n")
        return groups

    def on_before_optimizer_step(self, trainer, agent, optimizer) -> None:
        self._count(trainer)

    def on_train_batch_end(self, trainer, agent, outputs, batch, batch_idx) -> None:
        self._count(trainer)

    def on_validation_end(self, trainer, agent) -> None:
        self._count(trainer)

    def on_save_checkpoint(self, trainer, agent, checkpoint) -> None:
        self._count(trainer)

    def on_train_epoch_end(self, trainer, agent) -> None:
        self._count(trainer)

    def on_train_end(self, trainer, agent) -> None:
        (self.folder / f"events.{trainer.global_rank}").write_text(str(self.events))
        if trainer.global_rank == 0:
            [optimizer] = trainer.optimizers
            state = {"weights": agent.state_dict(), "optimizer": optimizer.state_dict(), "updates": trainer.global_step}
            torch.save(state, self.folder / "final.pt")
