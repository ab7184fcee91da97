"""Keeps what imports make out of Python's search for cycles: half a million objects that stay, among which looking took
an eighth of the start, and freeing them at the end a second. Standard library only."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_left_out() -> Iterator[None]:
    """Leaves out what the block imports."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
    atexit.register(_see_all_again)


def _see_all_again() -> None:
    """Lets Python free everything at its end where an extension module is made with nanobind, as in PyTorch's newest
    builds: it would report as leaked what was left out. Searches no further cycles before that."""
    if any(meta.__module__ == "nanobind" for meta in type.__subclasses__(type)):
        gc.unfreeze()
        gc.disable()
