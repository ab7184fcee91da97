"""Waiting for games that are being made, with a line that says how far that is."""

import sys
import time
from concurrent.futures import Future

from tsr_lightning.worlds.textworld.pool import MakerPool

_PATIENCE = 2.0  # seconds from one wait to the next after which a wait is of another batch, and of silence
_INTERVAL = 10.0  # seconds between lines where there is no terminal


class _Line:
    """A line on stderr: rewritten on a terminal, elsewhere printed now and then."""

    def __init__(self) -> None:
        self._begun = self._last = self._printed = float("-inf")

    def show(self, made: int, ordered: int, now: float) -> None:
        if now - self._last > _PATIENCE:
            self._begun = self._printed = now
        self._last = now
        if now - self._begun < _PATIENCE:
            return
        text = f"TextWorld games: {made} of {ordered} made"
        if sys.stderr.isatty():
            print(f"\r{text}", end="" if made < ordered else "\n", file=sys.stderr, flush=True)
        elif now - self._printed >= _INTERVAL:
            self._printed = now
            print(text, file=sys.stderr, flush=True)


_line = _Line()


def wait_for(future: "Future[None]", pool: MakerPool) -> None:
    """Waits for a game and raises what its making raised."""
    while True:
        _line.show(*pool.progress, time.monotonic())
        try:
            future.result(timeout=0.2)
        except TimeoutError:
            continue
        _line.show(*pool.progress, time.monotonic())
        return
