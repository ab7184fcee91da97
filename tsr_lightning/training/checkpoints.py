"""Checkpoint files: streamed to disk beside their target, synced, renamed, and closed by a digest of all their bytes.

A checkpoint is what `torch.save` writes, a zip archive; the digest is the archive's comment. So it is one file, which
may be copied and moved, and `torch.load(path, weights_only=True)` reads it without this project.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import torch

from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.files import modified

PART = ".part"  # ending of an unfinished file, whose name begins with a dot
_LABEL = b"sha256:"
_COMMENT = len(_LABEL) + 64
_FIRST, _END = b"PK\3\4", b"PK\5\6"  # of a zip archive, and of its last record
_END_SIZE = 22  # bytes of that record; its last two are the length of the comment that follows
_CHUNK = 1 << 20
_KEYS = ("state_dict", "loops", "global_step")  # of every checkpoint of a Trainer


def write(contents: dict[str, Any], path: Path) -> None:
    """Writes a whole checkpoint or none. Tensors go to disk one by one, without a copy of all in memory.

    Args:
        contents: of the checkpoint.
        path: of the file; folders above it are made.

    Raises:
        RunError: the disk is full, or the file cannot be written for another reason; an earlier one is kept.
    """
    part = path.with_name(f".{path.name}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w+b") as file:
            _save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise RunError(
            f"the checkpoint {path} could not be written ({error.strerror}): make room or mend the disk, and go on "
            "from the newest whole one with --ckpt_path"
        ) from error
    finally:
        with suppress(OSError):  # which would hide the error above, as where a file stands in the folder's place
            part.unlink()


def _save(contents: dict[str, Any], file: IO[bytes]) -> None:
    hashing = _HashingFile(file)
    try:
        torch.save(contents, cast(IO[bytes], hashing))  # which uses `write` and `flush` alone
    except RuntimeError:
        if hashing.error is not None:  # which torch hides behind one of its own
            raise hashing.error from None
        raise
    _append_digest(file, hashing.digest)


def load(path: Path, *, weights_only: bool = True, mmap: bool = False) -> dict[str, Any]:
    """Returns a checkpoint's contents, on the CPU, after its bytes were compared with its digest.

    Args:
        path: of the file.
        weights_only: load only tensors and plain values, all that our checkpoints hold.
        mmap: leave the tensors on disk until they are used.

    Raises:
        ConfigError: it is no whole checkpoint; the sentence names a whole one beside it.
    """
    reason = fault(path)
    if reason is not None:
        raise ConfigError(f"ckpt_path is {path}, which {reason}: {_remedy(path)}")
    try:
        return _contents(path, weights_only=weights_only, mmap=mmap)
    except Exception as error:
        raise ConfigError(f"ckpt_path is {path}, which is no checkpoint of tsr fit: {_remedy(path)}") from error


def fault(path: Path) -> str | None:
    """Says what is wrong with the bytes of a file, as the end of a sentence; None where nothing is.

    A file without a digest, as earlier versions wrote, passes where it ends as an archive ends.
    """
    if path.is_symlink() and not path.exists():
        return f"is a link to {os.readlink(path)}, which does not exist"
    if not path.exists():
        return "does not exist"
    if path.is_dir():
        return "is a folder"
    if path.stat().st_size == 0:
        return "is empty"
    with path.open("rb") as file:
        if file.read(len(_FIRST)) != _FIRST:
            return "is no readable checkpoint"
        digest = _digest_at_end(file)
        if digest is None:
            return None if _ends_as_an_archive(file) else "is truncated"
        if digest != _computed_digest(file):
            return "has changed since it was written, since its digest differs"
    return None


def is_whole(path: Path) -> bool:
    """True if the file is an undamaged checkpoint of `tsr fit`."""
    if fault(path) is not None:
        return False
    try:
        _contents(path, weights_only=True, mmap=True)
    except Exception:  # whatever unpickling a foreign file raises
        return False
    return True


def _remedy(path: Path) -> str:
    others = sorted(path.parent.glob("*.ckpt"), key=modified, reverse=True)
    whole = next((other for other in others if other != path and is_whole(other)), None)
    return f"go on from {whole} beside it" if whole is not None else "give a checkpoint of an earlier run"


def _contents(path: Path, *, weights_only: bool, mmap: bool) -> dict[str, Any]:
    contents: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=weights_only, mmap=mmap)
    missing = [key for key in _KEYS if key not in contents]
    if missing:
        raise ValueError(f"no {', '.join(missing)}")
    return contents


class _HashingFile:
    """A file for `torch.save` that hashes what passes through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.error: OSError | None = None  # of the last write

    @property
    def digest(self) -> bytes:
        return _LABEL + self._hash.hexdigest().encode()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _append_digest(file: IO[bytes], digest: bytes) -> None:
    """Makes the digest the comment of an archive that has none."""
    file.seek(-2, os.SEEK_END)
    file.write(len(digest).to_bytes(2, "little"))
    file.write(digest)


def _digest_at_end(file: IO[bytes]) -> bytes | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_SIZE - _COMMENT))
    end = file.read()
    has_digest = end[:4] == _END and end[_END_SIZE - 2 : _END_SIZE + len(_LABEL)] == bytes([_COMMENT, 0]) + _LABEL
    return end[_END_SIZE:] if has_digest else None


def _ends_as_an_archive(file: IO[bytes]) -> bool:
    """True for the last record of an archive without a comment, which is what `torch.save` writes."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_SIZE))
    end = file.read()
    return end[:4] == _END and end[-2:] == bytes(2)


def _computed_digest(file: IO[bytes]) -> bytes:
    """The digest of what `torch.save` wrote, whose comment had no length."""
    left = file.seek(0, os.SEEK_END) - _COMMENT - 2
    file.seek(0)
    found = hashlib.sha256()
    while left > 0 and (chunk := file.read(min(left, _CHUNK))):
        found.update(chunk)
        left -= len(chunk)
    found.update(bytes(2))
    return _LABEL + found.hexdigest().encode()


def _sync_folder(folder: Path) -> None:
    """Lets a rename outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
