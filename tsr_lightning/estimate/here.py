"""The machine that this process runs on, as an estimate of memory sees it."""

from pathlib import Path

import psutil
import torch

from tsr_lightning.estimate.cards import Card

_GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")  # of a container, version 2
_UNKNOWN = 0.0  # speeds, which memory does not depend on
_CPU_CONTEXT_GIB = 0.6  # of Python, PyTorch and Lightning
_CPU_FRAGMENTATION = 0.05  # glibc gives large blocks back at once


def card_here(device: torch.device) -> Card:
    """The device of a run with the memory that is free: of a CPU what a container's limit leaves of it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return Card(name, free / _GIB, _UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN, context_gib=0.0)  # it is in use already
    return Card(
        "this machine",
        min(psutil.virtual_memory().available, _left_in_container(_CGROUP)) / _GIB,
        *(_UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN),
        context_gib=_CPU_CONTEXT_GIB,
        fragmentation=_CPU_FRAGMENTATION,
    )


def _left_in_container(cgroup: Path) -> float:
    """Bytes that a container may still take; infinite where there is no limit."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
    except FileNotFoundError:
        return float("inf")
    if limit == "max":
        return float("inf")
    return int(limit) - used + int(stat.get("inactive_file", 0))  # cached files give way
