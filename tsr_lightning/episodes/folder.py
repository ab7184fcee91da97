"""The files of episodes in a run's folder: their names, and a budget of bytes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tsr_lightning.episodes.files import SUFFIX
from tsr_lightning.episodes.schema import ROLLOUT
from tsr_lightning.errors import ConfigError

FOLDER = "episodes"


class Saved(NamedTuple):
    """A file of a run's episodes."""

    phase: str
    epoch: int
    path: Path


def file_of(run: Path, phase: str, epoch: int) -> Path:
    """The file of a rollout or an evaluation."""
    return run / FOLDER / f"{phase}-{epoch:06d}{SUFFIX}"


def saved_in(folder: Path) -> list[Saved]:
    """The files of a folder of episodes, by phase and epoch."""
    names = ((re.fullmatch(rf"(.+)-(\d+){re.escape(SUFFIX)}", path.name), path) for path in folder.glob(f"*{SUFFIX}"))
    return sorted(Saved(name[1], int(name[2]), path) for name, path in names if name)


def files_at(path: Path) -> list[Path]:
    """The files that a path names: itself, or those of a run's folder or of a folder of episodes.

    Raises:
        ConfigError: there are none.
    """
    if path.is_file():
        return [path]
    for folder in (path / FOLDER, path):
        if found := [saved.path for saved in saved_in(folder)]:
            return found
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or folder")
    raise ConfigError(
        f"{path} has no saved episodes: callbacks.EpisodeLog keeps those of a run, and tsr rollout plays and saves some"
    )


def keep_within(folder: Path, budget: int, newest: Path) -> list[Saved]:
    """Removes files until the rest fits, and returns them: rollouts before evaluations, and always the one with the
    closest neighbours in time, so that what stays is spread over the run.

    Args:
        folder: of the episodes.
        budget: bytes.
        newest: the file just written, which stays.
    """
    files = saved_in(folder)
    sizes = {saved.path: saved.path.stat().st_size for saved in files}
    removed: list[Saved] = []
    while sum(sizes[saved.path] for saved in files) > budget:
        rollouts = [saved for saved in files if saved.phase == ROLLOUT]
        others = [saved for saved in files if saved.phase != ROLLOUT]
        dropped = _densest(rollouts, newest) or _densest(others, newest)
        if dropped is None:
            break
        dropped.path.unlink(missing_ok=True)
        files.remove(dropped)
        removed.append(dropped)
    return removed


def _densest(files: Sequence[Saved], newest: Path) -> Saved | None:
    """The file between the closest neighbours of its phase; without such a one the oldest but the newest one."""
    between = [
        (after.epoch - before.epoch, own.epoch, own)
        for before, own, after in zip(files, files[1:], files[2:], strict=False)
        if before.phase == own.phase == after.phase and own.path != newest
    ]
    if between:
        return min(between)[2]
    return min((own for own in files if own.path != newest), key=lambda own: own.epoch, default=None)
