"""Runs the processes of a study: each run is one, holds a lock while it lives, and dies with the study."""

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_GRACE = 20.0  # seconds in which a run that is asked to end does so: it may be writing a checkpoint


class AlreadyRunning(Exception):
    """Raised where another process, perhaps of a study that was killed, still works on a run."""


@contextmanager
def locked(lock: Path) -> Iterator[int]:
    """Holds a lock, and gives its file descriptor, by which a child holds it too, even where this process is killed.

    Raises:
        AlreadyRunning: another process holds it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning from error
        yield held.fileno()


class Processes:
    """The running processes. Safe to call from several threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._mutex = threading.Lock()
        self._closed = False

    def run(self, command: Sequence[str], environment: Mapping[str, str], log: Path, lock: int) -> int:
        """Runs a command to its end and returns its exit status, negative for a signal.

        Args:
            command: with its arguments.
            environment: variables to set besides those of this process.
            log: the file that its output is appended to.
            lock: the file descriptor of a lock, which the command holds as long as it lives.
        """
        with log.open("ab") as output:
            with self._mutex:
                if self._closed:
                    return -signal.SIGKILL
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    pass_fds=(lock,),
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._mutex:
                    self._running.discard(process)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends what runs by SIGTERM, kills what has not ended in time, and lets nothing begin. Checkpoints are written
        whole or not at all, so nothing is lost but time."""
        with self._mutex:
            self._closed = True
            running = list(self._running)
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def last_lines(log: Path, count: int) -> list[str]:
    """Returns the end of a log, without empty lines; a progress bar's line is its last state."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-count:]
