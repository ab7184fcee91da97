"""Text files that a killed process leaves whole."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a whole file or none, and the folders above it. Several processes may write it: the last one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
