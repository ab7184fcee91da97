"""How much memory something took at its peak, and giving back what is free. Knows devices, and nothing of what is
measured."""

import ctypes
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
_EVERY = 0.005  # seconds between looks at a CPU's memory
PAUSE = 60.0


@dataclass
class Peak:
    """Bytes, right once `peak` has been left."""

    before: int = 0  # when it began
    highest: int = 0

    @property
    def highest_mib(self) -> float:
        return self.highest / 2**20

    @property
    def added(self) -> int:
        return self.highest - self.before


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """Within, the highest memory is watched: what PyTorch allocated on a CUDA device, else what this process holds of
    the machine's memory, looked at every five milliseconds. It is zero where the system does not tell.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        seen = Peak(torch.cuda.memory_allocated(device))
        try:
            yield seen
        finally:
            seen.highest = torch.cuda.max_memory_allocated(device)
        return
    seen = Peak(_resident())
    seen.highest = seen.before
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            seen.highest = max(seen.highest, _resident())

    watcher = threading.Thread(target=watch, name="peak", daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()
        seen.highest = max(seen.highest, _resident())


def _resident() -> int:
    """Of this process, in bytes; Linux alone tells."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Allocator:
    """Gives free memory back to the machine. glibc keeps what lies between pieces that are in use; where there is
    another allocator nothing happens.

    Memory that went back must be touched anew, some 0.8 s a GiB, which would be a tenth of a small model's epoch. So it
    goes back once in `PAUSE` seconds at most.
    """

    def __init__(self) -> None:
        self._released = time.monotonic()

    def release(self) -> None:
        """To be called where a phase ends."""
        if time.monotonic() - self._released >= PAUSE and platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
            self._released = time.monotonic()
