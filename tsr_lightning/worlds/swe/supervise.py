"""Waits for a command within its limits, and keeps the beginning and the end of what it says."""

import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from tsr_lightning.worlds.swe.sandbox import Limits

_CHUNK = 1 << 16


@dataclass
class Kept:
    """Output whose middle is cut out.

    Args:
        most: bytes that are kept.
    """

    most: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    seen: int = 0

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        room = self.most // 2 - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.most:
            del self.tail[: len(self.tail) - self.most // 2]

    def text(self) -> str:
        tail = self.tail[-(self.most // 2) :]
        cut = self.seen - len(self.head) - len(tail)
        parts = [self.head.decode(errors="replace"), tail.decode(errors="replace")]
        return f"\n... {cut} bytes cut ...\n".join(parts) if cut else (self.head + tail).decode(errors="replace")


def supervise(output: IO[bytes], ended: int, kill: Callable[[], None], limits: Limits) -> tuple[Kept, str]:
    """Reads output until the processes of a command have ended, and ends them at a limit.

    Args:
        output: a pipe, which a process of the command may hold open.
        ended: a descriptor of the process with which all the others end, readable when none is left.
        kill: ends all of them.

    Returns:
        the output, and the limit that ended the command, "" for none.
    """
    kept, problem = Kept(limits.output), ""
    deadline = time.monotonic() + limits.seconds
    os.set_blocking(output.fileno(), False)
    with selectors.DefaultSelector() as waiting:
        waiting.register(output, selectors.EVENT_READ)
        waiting.register(ended, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in waiting.select(None if problem else max(0.0, deadline - time.monotonic()))}
            if output.fileno() in ready and not _read(output, kept):
                waiting.unregister(output)
            if ended in ready:
                break
            if not problem:
                problem = _limit(kept, deadline, limits)
                if problem:
                    kill()
    while _read(output, kept) and kept.seen <= limits.most_output:
        pass
    return kept, problem


def kill_process(descriptor: int) -> None:
    """Kills the process of a descriptor; one that has ended stays ended."""
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return


def _limit(kept: Kept, deadline: float, limits: Limits) -> str:
    if kept.seen > limits.most_output:
        return f"ended after {limits.most_output} bytes of output"
    return f"ended after {limits.seconds:g} seconds" if time.monotonic() >= deadline else ""


def _read(output: IO[bytes], kept: Kept) -> bool:
    """Reads what is there; False at the end of the output, and where there is nothing yet."""
    try:
        data = os.read(output.fileno(), _CHUNK)
    except BlockingIOError:
        return False
    kept.add(data)
    return bool(data)


def kill_group(leader: int) -> None:
    """Kills the processes of a group; those that have ended stay ended."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
