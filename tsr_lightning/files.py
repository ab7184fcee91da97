"""Files that a killed process leaves whole, and which of its checkpoints to go on from."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

_OF_THE_LAST = re.compile(r"last(-v\d+)?\.ckpt")


def write_whole(path: Path, text: str) -> None:
    """Writes a whole text file or none, and its folders. Several processes may write it: the last one stays."""
    write_whole_bytes(path, text.encode())


def write_whole_bytes(path: Path, contents: bytes) -> None:
    """Writes a whole file or none, as `write_whole` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def newest_checkpoint(folders: Iterable[Path]) -> Path | None:
    """The checkpoint to go on from in some folders: the newest `last.ckpt`, or the newest of all where none has that
    name. It may be damaged. None where there is none."""
    found = [path for folder in folders if folder.is_dir() for path in folder.glob("*.ckpt")]
    last = [path for path in found if _OF_THE_LAST.fullmatch(path.name)]
    return max(last or found, key=modified, default=None)


def modified(path: Path) -> int:
    """When a file was written, in nanoseconds; of a link itself, since what it names may be gone."""
    return path.lstat().st_mtime_ns
