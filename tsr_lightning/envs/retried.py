"""Which errors of an environment are tried again, and how one is told."""

import subprocess

from tsr_lightning import errors
from tsr_lightning.envs.base import EnvDied, EnvRaised, EnvTimedOut
from tsr_lightning.errors import EnvFault, named

# Failures of what an environment depends on; another error is a mistake in its program. TimeoutError is an OSError.
FAULTS = (EnvFault, OSError, subprocess.TimeoutExpired)


def describe(error: BaseException) -> str:
    """The class, message, file and line of an error, whichever process raised it."""
    if isinstance(error, EnvRaised):
        return str(error)  # described where it was raised
    return named(error) if isinstance(error, EnvTimedOut | EnvDied) else errors.describe(error)
