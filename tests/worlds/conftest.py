"""What tests of the worlds share."""

import os

import pytest

from tsr_lightning.errors import ConfigError
from tsr_lightning.worlds.swe.bubblewrap import open_bubblewrap


@pytest.fixture(scope="session")
def sandbox_here() -> None:
    """Skips where this machine lets nobody make a sandbox."""
    try:
        open_bubblewrap(os.getpid())
    except ConfigError as error:
        pytest.skip(str(error))
