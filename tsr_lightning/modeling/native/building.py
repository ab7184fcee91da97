"""Builds the C kernels with this machine's compiler, once per source, compiler and processor, and loads them."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tsr_lightning.modeling.native.kept_library import is_sound, make_private, seal

SOURCES = tuple(Path(__file__).with_name(name) for name in ("attention.c", "layers.c", "sampling.c", "step.c"))
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared")
_HEADERS = tuple(Path(__file__).with_name(name) for name in ("numbers.h", "rows.h", "tile.h", "vectors.h"))
_TIMEOUT_SECONDS = 120.0  # a build takes one


@dataclass(frozen=True)
class Built:
    """The outcome of a build."""

    library: ctypes.CDLL | None
    detail: str  # where the library is, or why there is none


@cache
def load() -> Built:
    """The C kernels, built if need be. The log says once whether they are used."""
    log = logging.getLogger(__name__)
    try:
        path = build(compiler(), cache_folder())
        built = Built(ctypes.CDLL(str(path)), str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home folder
        built = Built(None, _reason(error))
        log.info("PyTorch's kernels are used, which are slower on a CPU than those in C: %s", built.detail)
    else:
        log.info("the C kernels are used on a CPU: %s", built.detail)
    return built


def compiler() -> list[str]:
    """The command in CC, or the first of the usual ones."""
    command = shlex.split(os.environ.get("CC", ""))
    for candidate in [command] if command else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise FileNotFoundError(f"there is no C compiler ({' '.join(command) or 'cc, gcc or clang'})")


def cache_folder() -> Path:
    """Returns the folder of built kernels, where only this user may write."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(root).absolute() / "tsr_lightning" / "native"
    make_private(path)
    return path


def build(command: list[str], folder: Path) -> Path:
    """The shared library, built where there is none, or one that is broken or not trusted. Processes may build
    at once: each moves a whole file."""
    path = folder / f"kernels-{_fingerprint(command)}.so"
    if not is_sound(path):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            output = Path(scratch) / path.name
            _run([*command, *FLAGS, "-o", str(output), *map(str, SOURCES), "-lm"])
            output.chmod(0o700)
            seal(output)
            output.replace(path)
    return path


def _fingerprint(command: list[str]) -> str:
    parts = (
        *(source.read_text() for source in (*SOURCES, *_HEADERS)),
        " ".join([*command, *FLAGS]),
        _run([*command, "--version"]),
        _processor(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """Identifies the processor, on which -march=native depends; machines that differ may share a home folder."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    kept = [line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features", "CPU part")]
    return "\n".join([platform.machine(), platform.processor(), *kept])


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT_SECONDS
    )
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        first = next(iter(error.stderr.strip().splitlines()), "it wrote no error")
        return f"{error.cmd[0]} failed: {first}"
    return str(error)
