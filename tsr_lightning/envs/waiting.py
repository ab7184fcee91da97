"""A line on stderr that says what is waited for, where calls of an environment take long."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

FIRST_SECONDS = 10.0  # before the first line

_REMEDY = "with data.env_processes true, data.faults.step_timeout ends a call that hangs"


class Waiting:
    """Watches waits from one thread, which ends with the context, so that a wait itself costs next to nothing.

    Args:
        first: seconds after which what is waited for is printed; it is printed again whenever the wait has doubled.
    """

    def __init__(self, first: float = FIRST_SECONDS) -> None:
        self._first = first
        self._ended = Event()
        self._wait: tuple[str, float] | None = None  # what is waited for, and since when
        self._thread = Thread(target=self._watch, name="waiting", daemon=True)

    def __enter__(self) -> "Waiting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Waits for something."""
        self._wait = what, time.monotonic()
        try:
            yield
        finally:
            self._wait = None

    def _watch(self) -> None:
        last, due = self._wait, self._first
        while not self._ended.wait(self._first / 4):
            wait = self._wait
            if wait is not last:
                last, due = wait, self._first
            if wait is None or (seconds := time.monotonic() - wait[1]) < due:
                continue
            print(f"waiting for {wait[0]} ({seconds:.0f} s); {_REMEDY}", file=sys.stderr, flush=True)
            due = 2 * seconds


@contextmanager
def told(what: str, first: float = FIRST_SECONDS) -> Iterator[None]:
    """Waits for something once; see `Waiting`."""
    with Waiting(first) as waiting, waiting.on(what):
        yield
