"""Lock files: one process at a time holds each."""

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO


class Held(Exception):
    """Another process holds a lock.

    Args:
        holder: that process, in words.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@dataclass(frozen=True)
class Lock:
    """A lock that ends with the process, however that ends."""

    path: Path
    file: IO[str]

    @classmethod
    def acquire(cls, path: Path) -> "Lock":
        """Locks a file, which is made with its folders where it is missing.

        Raises:
            Held: another process holds the lock.
            OSError: the file cannot be made or locked.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, no child that is forked inherits it
        except OSError as error:
            file.seek(0)
            holder = file.read()
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise Held(holder or "another process") from error
        if not _is_at(file, path):  # released, and so removed, between opening and locking
            file.close()
            return cls.acquire(path)
        file.truncate(0)
        file.write(f"process {os.getpid()} of {os.uname().nodename}")
        file.flush()
        return cls(path, file)

    def release(self) -> None:
        """Lets other processes in, and leaves no file behind."""
        self.path.unlink(missing_ok=True)
        self.file.close()


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
