"""Writes trajectories as conversations: the file that `data.demonstrations` reads, and that TRL trains on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.episodes.conversations import to_record
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.files import write_whole_bytes
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.lightning_compat import epochs_at_rollout
from tsr_lightning.trajectory import Group

_NAME = "conversations.jsonl"


class ConversationLog(Callback):
    """Appends the trajectories of every rollout to a file of JSON lines, in TRL's format for supervised training
    (https://huggingface.co/docs/trl/dataset_formats).

    Each line has `messages` (the environment's instructions as the system message, then observations and responses in
    turn) and, beside them, `tools` and their `call_format` where the environment has some, `epoch`, `env` (its index in
    a mixture), `instance`, `strategy`, `return` and `success`. It writes the groups that the callbacks before it in the
    list have left. An epoch that is rolled out anew after a resume replaces its lines; a run from the start replaces
    the file.

    Args:
        path: of the file; its folder is made where it is missing. null is `conversations.jsonl` in the run's folder.
        successes_only: leave out trajectories that did not succeed.
    """

    def __init__(self, path: str | None = None, successes_only: bool = True) -> None:
        super().__init__()
        self.path = path
        self._file = Path(path or _NAME)
        self.successes_only = successes_only
        self._began = self._resumes = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._began, self._resumes = False, epochs_at_rollout(trainer) > 0  # a Trainer that fits on keeps its lines
        folder = compat.run_folder(trainer)  # read on every rank, because rank 0 broadcasts it
        self._file = Path(self.path) if self.path is not None else (folder or Path()) / _NAME
        data = compat.datamodule(trainer)
        read = data.demonstrations if isinstance(data, RolloutDataModule) else None
        is_own = read is not None and Path(read.path).resolve() == self._file.resolve()
        require(
            not is_own, "ConversationLog.path", str(self._file), "data.demonstrations reads this file, so give another"
        )
        if stage == "fit":  # nothing else writes
            _check_own(self._file)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._resumes = True

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        if trainer.is_global_zero:
            epoch = epochs_at_rollout(trainer)
            kept = [t for group in groups for t in group.trajectories if t.succeeded or not self.successes_only]
            lines = [json.dumps(to_record(t) | {"epoch": epoch}, ensure_ascii=False) for t in kept]
            self._append([f"{line}\n" for line in lines], epoch)
        return groups

    def _append(self, lines: list[str], epoch: int) -> None:
        own = "".join(lines).encode()
        if self._began:
            with self._file.open("ab") as file:
                file.write(own)
            return
        earlier = b"".join(_lines_before(self._file, epoch)) if self._resumes else b""
        write_whole_bytes(self._file, earlier + own)  # so that a kill loses no earlier line and cuts off no first one
        self._began = bool(earlier + own)


def _check_own(path: Path) -> None:
    """Refuses what is no file, and a file that another program wrote, by its first line."""
    is_free = path.is_file() or not path.exists()
    require(is_free, "ConversationLog.path", str(path), "it is no file, so give the path of one")
    for line in _lines(path):
        _epoch_of(line, path)
        return


def _lines_before(path: Path, epoch: int) -> Iterator[bytes]:
    """The lines of earlier epochs. It stops at an incomplete line, which a killed run leaves."""
    for line in _lines(path):
        if not line.endswith(b"\n") or _epoch_of(line, path) >= epoch:
            return
        yield line


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as they are, since that of another program may be no text; none where there is no file."""
    if path.is_file():
        with path.open("rb") as file:
            yield from file


def _epoch_of(line: bytes, path: Path) -> int:
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"ConversationLog.path is {str(path)!r}: a line there has no epoch, so another program wrote it; give "
            "another path"
        ) from error
