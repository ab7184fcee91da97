"""Measures peak memory, and gives free memory of the heap back. Knows devices, and nothing of what is measured."""

import ctypes
import os
import platform
import threading
import time
import weakref
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
_INTERVAL = 0.005  # seconds between samples of a CPU's memory


class PeakMemory:
    """The highest memory from here to `stop`, or within a `with` block.

    On a CUDA device that is what PyTorch allocated; otherwise it is the resident memory of this process, sampled every
    five milliseconds, and zero on systems other than Linux. Sampling ends with this object, if `stop` is never called.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stopping = threading.Event()
        arguments = (weakref.ref(self), self._stopping)
        self._sampler = threading.Thread(target=_sample, args=arguments, name="peak memory", daemon=True)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = self.highest = torch.cuda.memory_allocated(device)  # bytes; `highest` is right once stopped
        else:
            self.before = self.highest = _resident_bytes()
            self._sampler.start()

    @property
    def highest_mib(self) -> float:
        return self.highest / 2**20

    @property
    def added(self) -> int:
        return self.highest - self.before

    def stop(self) -> None:
        if self._device.type == "cuda":
            self.highest = torch.cuda.max_memory_allocated(self._device)
        else:
            self._stopping.set()
            self._sampler.join()
            self.highest = max(self.highest, _resident_bytes())

    def __enter__(self) -> "PeakMemory":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _sample(peak: "weakref.ref[PeakMemory]", stopping: threading.Event) -> None:
    """Holds no reference between samples, so that a run that ended in an error leaves no thread behind."""
    while not stopping.wait(_INTERVAL) and (memory := peak()) is not None:
        memory.highest = max(memory.highest, _resident_bytes())
        del memory


def _resident_bytes() -> int:
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


TRIM_INTERVAL = 20.0  # seconds
GROWN_INTERVAL = 4.0  # seconds, where the process holds so many bytes more than after the last return:
GROWN = 256 * 2**20


class HeapTrimmer:
    """Gives free heap memory back to the machine: glibc keeps what lies between blocks that are in use. With another
    allocator it does nothing.

    Memory that went back costs some 0.8 s a GiB when it is used again, which would be a tenth of a small model's epoch.
    So it goes back once in `TRIM_INTERVAL` seconds, or in `GROWN_INTERVAL` where much was added since.
    """

    def __init__(self) -> None:
        self._trimmed = time.monotonic()
        self._resident = _resident_bytes()

    def trim(self) -> None:
        """Call it where a phase ends."""
        waited, grown = time.monotonic() - self._trimmed, _resident_bytes() - self._resident
        is_due = waited >= TRIM_INTERVAL or (waited >= GROWN_INTERVAL and grown >= GROWN)
        if is_due and platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
            self._trimmed, self._resident = time.monotonic(), _resident_bytes()
