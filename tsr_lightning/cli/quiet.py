"""Keeps Lightning's notices of devices and seeds out of what only checks, estimates or probes."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Leaves out log messages up to INFO and Lightning's own warnings, which `tsr fit` shows."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        logging.disable(before)
