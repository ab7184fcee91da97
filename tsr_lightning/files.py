"""Files that a killed process leaves whole."""

import os
from pathlib import Path


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
