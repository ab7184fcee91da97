"""Which checkpoint of a run is the newest: what a restarted run goes on from. Imports no Ray."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins import CheckpointIO


@dataclass(frozen=True)
class Newest:
    """The path of the newest checkpoint of a run, in a file that outlives its workers."""

    file: Path

    def write(self, checkpoint: str | Path) -> None:
        """At once or not at all, since the writer may be killed."""
        unfinished = self.file.with_name(f".{self.file.name}.unfinished")
        unfinished.write_text(str(Path(checkpoint).resolve()))
        os.replace(unfinished, self.file)

    def read(self) -> str | None:
        """None where none was written, or it has been removed."""
        if not self.file.exists():
            return None
        path = self.file.read_text()
        return path if Path(path).exists() else None


class Reporting(CheckpointIO):
    """Another CheckpointIO, which reports what training can go on from as soon as it is written: before a
    ModelCheckpoint removes the one before."""

    def __init__(self, inner: CheckpointIO, report: Callable[[str | Path], None]) -> None:
        self._inner = inner
        self._report = report

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        self._inner.save_checkpoint(checkpoint, path, storage_options)
        if "optimizer_states" in checkpoint:  # absent where a ModelCheckpoint saves weights only
            self._report(path)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._inner.load_checkpoint(*args, **kwargs)  # whose defaults are its own

    def remove_checkpoint(self, path: str | Path) -> None:
        self._inner.remove_checkpoint(path)
