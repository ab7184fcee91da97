"""The generators that Python and NumPy share among all code of a process, lent to a library that draws from them."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOCK = threading.RLock()


@contextmanager
def lent(seed: int) -> Iterator[None]:
    """Seeds both for what is called within, and gives them back as they were. One thread has them at a time."""
    with _LOCK:
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
