"""How much memory something took at its peak. Knows devices, and nothing of what is measured."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
_EVERY = 0.005  # seconds between looks at a CPU's memory


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
