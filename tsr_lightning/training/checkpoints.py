"""Checkpoints that are whole or not there."""

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that a run killed while it writes leaves the last checkpoint whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        target = Path(path)
        unfinished = target.with_name(f".{target.name}.unfinished")
        super().save_checkpoint(checkpoint, unfinished, storage_options)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, target)
