"""Which errors of an environment are tried again, and how an error is told: class, message, file and line."""

import os
import subprocess
import sysconfig
import traceback
from pathlib import Path

from tsr_lightning.envs.base import EnvDied, EnvRaised, EnvTimedOut
from tsr_lightning.errors import EnvFault

# Failures of what an environment depends on; another error is a mistake in its program. TimeoutError is an OSError.
FAULTS = (EnvFault, OSError, subprocess.TimeoutExpired)

_LIBRARIES = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[1]}{os.sep}",  # this package
)


def describe(error: BaseException) -> str:
    """The class and message of an error, and the line that raised it: the innermost one outside of libraries."""
    if isinstance(error, EnvRaised):
        return str(error)  # described where it was raised
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, EnvTimedOut | EnvDied):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f"{message} at {_readable(own[-1].filename)}:{own[-1].lineno}" if own else message


def _readable(file: str) -> str:
    """A path as seen from the working folder, where it lies below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
