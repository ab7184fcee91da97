"""The processes of a study: each run is one, holds a lock while it lives, and dies with the study."""

import fcntl
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


class AlreadyRunning(Exception):
    """Another process, perhaps of a study that was killed, still works on this run."""


class Processes:
    """The running processes. Safe to call from several threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._mutex = threading.Lock()
        self._closed = False

    def run(self, command: Sequence[str], environment: Mapping[str, str], log: Path, lock: Path) -> int:
        """Runs a command to its end and returns its exit status, negative for a signal.

        Args:
            command: with its arguments.
            environment: variables to set besides those of this process.
            log: the file that its output is appended to.
            lock: locked as long as the command runs, even where this process is killed before it.

        Raises:
            AlreadyRunning: the lock is held.
        """
        with lock.open("w") as held, log.open("ab") as output:
            _take(held)
            with self._mutex:
                if self._closed:
                    return -1
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    pass_fds=(held.fileno(),),  # a lock is held until the last process that has the file closes it
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._mutex:
                    self._running.discard(process)

    def close(self) -> None:
        """Kills what runs and lets nothing begin. Checkpoints are written atomically, so nothing is lost but time."""
        with self._mutex:
            self._closed = True
            for process in self._running:
                process.kill()


def is_locked(lock: Path) -> bool:
    """Whether a process works on the run of this lock."""
    if not lock.exists():
        return False
    with lock.open("r") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _take(held: IO[str]) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise AlreadyRunning from error


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log, without empty lines; a progress bar's line is its last state."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-count:]
