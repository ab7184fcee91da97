"""Retries calls of environments that fail, and counts the failures."""

import logging
import traceback
from collections.abc import Callable
from threading import Lock
from typing import Protocol, TypeVar

from tsr_lightning.costs import Costs
from tsr_lightning.envs.base import EnvDied, EnvTimedOut
from tsr_lightning.envs.retried import FAULTS, describe

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


class RetriesExhausted(Exception):
    """A call of an environment failed, and so did its repetitions."""


class Retry(Protocol):
    """Calls an environment, and decides what becomes of a call that fails."""

    def __call__(self, act: Callable[[], ResultT], /) -> ResultT:
        """The result of a call, or of a few together, that begins by restoring or resetting the environment.

        Raises:
            RetriesExhausted: where there is none.
        """

    def take_costs(self) -> Costs:
        """The failures since it was last asked."""


class NoRetry:
    """Lets every error through."""

    def __call__(self, act: Callable[[], ResultT], /) -> ResultT:
        return act()

    def take_costs(self) -> Costs:
        return Costs()


class Retrying:
    """Repeats calls that failed, with the same draws. Mistakes in a program or in the configuration are let through
    (`envs.boundary`).

    The traceback of a failure is logged once per error and place. Threads may share one.

    Args:
        retries: the most repetitions of a call.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._lock = Lock()
        self._costs = Costs()
        self._logged: set[str] = set()
        self.last = ""  # the last failure, for a message

    def __call__(self, act: Callable[[], ResultT], /) -> ResultT:
        for retry in range(self._retries + 1):
            try:
                return act()
            except FAULTS as error:
                self._record(error)
                if retry == self._retries:
                    raise RetriesExhausted from error
        raise AssertionError("a call returns, or its last repetition raises")

    def take_costs(self) -> Costs:
        with self._lock:
            costs, self._costs = self._costs, Costs()
        return costs

    def _record(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        with self._lock:
            self._costs += _count(error)
            self.last = describe(error)
            is_new = _kind(error) not in self._logged
            self._logged.add(_kind(error))
        if is_new:
            log.warning("an environment failed; failures of this kind are counted from here on\n%s", text)


def _count(error: Exception) -> Costs:
    if isinstance(error, EnvTimedOut):
        return Costs(env_timeouts=1)
    if isinstance(error, EnvDied):
        return Costs(env_deaths=1)
    return Costs(env_errors=1)


def _kind(error: Exception) -> str:
    """The class of an error, and the lines that raised it, here and in the environment's own process."""
    frames = traceback.extract_tb(error.__traceback__)
    notes = "".join(line for note in getattr(error, "__notes__", ()) for line in note.splitlines()[:-1])
    return f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno} {notes}"
