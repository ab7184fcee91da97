"""Keeps a built library so that loading it later is safe: nobody else could have written it, and it is whole.

A library is code that this process runs. So its folder must belong to this user and nobody else may write there, as ssh
asks of its keys, and the file ends with the SHA-256 of the bytes before.
"""

import hashlib
import os
import stat
from pathlib import Path

_DIGEST = hashlib.sha256().digest_size
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path) -> None:
    """Makes a folder that only this user may write to; missing folders above it are made likewise.

    Raises:
        PermissionError: another user may write there, or put another folder in its place.
    """
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would leave those above to the umask
    remedy = "so no library from there is run: mend its owner and mode, or set XDG_CACHE_HOME to a folder of your own"
    if not _is_own(folder):
        raise PermissionError(f"{folder} is another user's or others may write to it, {remedy}")
    for path in folder.parents:
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(f"{path} may be written to by everybody, {remedy}")


def seal(library: Path) -> None:
    """Appends the digest; a loader ignores what follows a library."""
    with library.open("r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(digest)


def is_sound(library: Path) -> bool:
    """True if the file is this user's, no other may write it, and it is as it was sealed."""
    if not library.is_file() or not _is_own(library):
        return False
    contents = library.read_bytes()
    return hashlib.sha256(contents[:-_DIGEST]).digest() == contents[-_DIGEST:]


def _is_own(path: Path) -> bool:
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & _OTHERS_MAY_WRITE
