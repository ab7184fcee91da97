"""A callback that tells who interrupts a run what it is doing."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.search.progress import Progress

PHASE = "phase.txt"


class Phase(Callback):
    """Writes down what the process does, for who interrupts it."""

    def _write(self, phase: str) -> None:
        Path(PHASE).write_text(phase, encoding="utf-8")

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None:
        self._write("rollout" if progress.phase == TRAINING_ROLLOUT else "validation")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._write("update")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write("end of an epoch")
