"""The folder of an export: it holds one policy in one form, which is never written over by another."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from tsr_lightning.errors import ConfigError
from tsr_lightning.files import write_whole
from tsr_lightning.policy.model_card import FORMS, Form

RECORD = "tsr_export.json"


@dataclass(frozen=True)
class Exported:
    """Names what a folder holds.

    Args:
        policy: the digest of its trained weights.
        form: of the files.
        checkpoint: that it was written from.
    """

    policy: str
    form: Form
    checkpoint: str

    @classmethod
    def read(cls, folder: Path) -> "Exported | None":
        """Reads what was exported to a folder; None where nothing was."""
        try:
            return cls(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def check(self, folder: Path) -> None:
        """Refuses a folder that holds anything else.

        Raises:
            ConfigError: it holds another policy, another form of this one, or other files.
        """
        if folder.is_file() or (folder.is_symlink() and not folder.exists()):
            raise ConfigError(f"output is {folder}, which is no folder: give the path of a new one")
        if not folder.is_dir() or not any(folder.iterdir()):
            return
        there = Exported.read(folder)
        if there is None:
            raise ConfigError(f"output is {folder}, which holds files of another kind: give the path of a new folder")
        if there.policy != self.policy:
            holds = f"the policy of {there.checkpoint}"
        elif there.form != self.form:
            holds = f"this policy as {FORMS[there.form]}"
        else:
            return
        raise ConfigError(f"output is {folder}, which holds {holds}: give another folder, or delete that one first")

    @contextmanager
    def written_to(self, folder: Path) -> Iterator[Path]:
        """Gives a folder to write to, whose files take their place once all are written."""
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a killed process
        part.mkdir(parents=True)
        try:
            yield part
            write_whole(part / RECORD, json.dumps(asdict(self), indent=1) + "\n")
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(part.iterdir(), key=lambda path: path.name == RECORD):  # which says that all are there
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def digest(state: Mapping[str, Tensor]) -> str:
    """A hash of weights with their names."""
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def size_of(folder: Path) -> str:
    """The number of a folder's files and their size, in words."""
    sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:,.1f} MB"
