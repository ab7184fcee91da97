"""Builds the kernel with this machine's own compiler, once for each source, compiler and processor, and loads it."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = tuple(Path(__file__).with_name(name) for name in ("attention.c", "layers.c"))
HEADER = Path(__file__).with_name("numbers.h")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared")
SWITCH = "TSR_NATIVE"  # 0: PyTorch's attention, whatever there is
_SECONDS = 120.0  # a build takes one


@cache
def library() -> ctypes.CDLL | None:
    """The kernel, or none where it is switched off or cannot be built: PyTorch attends then."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(built(compiler(), folder())))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home
        logging.getLogger(__name__).warning(
            "attention is PyTorch's, which is slower on a CPU than the kernel that was to be built: %s", _told(error)
        )
        return None


def compiler() -> list[str]:
    """The command: what CC says, or the first of the usual ones."""
    command = shlex.split(os.environ.get("CC", ""))
    for candidate in [command] if command else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise FileNotFoundError(f"there is no C compiler ({' '.join(command) or 'cc, gcc or clang'})")


def folder() -> Path:
    """Of built kernels: this user's, and nobody else's to write to."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(root) / "tsr_lightning" / "native"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def built(command: list[str], where: Path) -> Path:
    """The shared library, which is made if there is none yet. Processes may do so side by side: the last to finish
    puts its own in the place of another's like it."""
    path = where / f"kernels-{_fingerprint(command)}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=where) as scratch:
            made = Path(scratch) / path.name
            _run([*command, *FLAGS, "-o", str(made), *map(str, SOURCES), "-lm"])
            made.replace(path)
    return path


def _fingerprint(command: list[str]) -> str:
    told = (
        *(source.read_text() for source in SOURCES),
        " ".join([*command, *FLAGS]),
        _run([*command, "--version"]),
        _processor(),
    )
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:24]


def _processor() -> str:
    """What -march=native looks at; a home may be shared by machines that differ."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    kept = [line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features", "CPU part")]
    return "\n".join([platform.machine(), platform.processor(), *kept])


def _run(command: list[str]) -> str:
    told = subprocess.run(
        command, check=True, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS
    )
    return told.stdout


def _told(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        first = next(iter(error.stderr.strip().splitlines()), "no word of why")
        return f"{error.cmd[0]} failed: {first}"
    return str(error)
