"""Memory of this machine, or of the container that this process runs in."""

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")  # of a container, version 2


def free_bytes() -> float:
    """Bytes that may still be taken; cached files give way."""
    return min(float(psutil.virtual_memory().available), _left_in_container(_CGROUP))


def total_bytes() -> float:
    """Bytes that all processes together may take."""
    return min(float(psutil.virtual_memory().total), _limit(_CGROUP))


def _limit(cgroup: Path) -> float:
    """Bytes that a container may take; infinite where there is no limit."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return float("inf")
    return float("inf") if limit == "max" else int(limit)


def _left_in_container(cgroup: Path) -> float:
    """Bytes that a container may still take; infinite where there is no limit."""
    try:
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
    except FileNotFoundError:
        return float("inf")
    return _limit(cgroup) - used + int(stat.get("inactive_file", 0))
