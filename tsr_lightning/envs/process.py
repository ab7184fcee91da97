"""An environment in a process of its own, behind the contract of one in this process.

A step that hangs can be ended there, and a crash ends no more than that process; steps of environments that compute in
Python run in parallel. The process leads a group of its own, and what the environment has started (a browser, a game)
ends with it. It is started by its own interpreter and not by `multiprocessing`, which would import the main
program, PyTorch included, into every process.
"""

import json
import pickle
import subprocess
import sys
import weakref
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any

from gymnasium.envs.registration import load_env_creator

from tsr_lightning.envs.base import (
    EnvBroken,
    EnvDied,
    EnvTimedOut,
    HasLegalActions,
    HasOracle,
    HasRandomPlay,
    Observation,
    PreparesInstances,
)
from tsr_lightning.envs.make import find_spec
from tsr_lightning.envs.process_group import end_group
from tsr_lightning.envs.tools import Offer, OffersTools
from tsr_lightning.envs.worker import Answer, Call, Made, View, made_by
from tsr_lightning.rng import Key

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from tsr_lightning.envs.worker import main; main(int(sys.argv[1]))"
)
_START_TIMEOUT = 300.0  # seconds to import and make the environment, of any size


class ProcessEnv:
    """A `Branchable` whose calls are played in another process, started at the first one and again after a failure.

    `set_state` and `reseed` are sent with the call that follows them, and its answer holds the state, so that a step of
    search is one message each way, and a second for the score. States and keys have to be picklable.

    Args:
        id: of the environment, as `make_env` takes it.
        kwargs: its arguments.
        timeout: seconds that a message may take; null for no limit.
        class_name: of the environment.
    """

    def __init__(self, id: str, kwargs: dict[str, Any], timeout: float | None, class_name: str) -> None:
        self.id, self.class_name = id, class_name
        self._spec = (id, kwargs)
        self._timeout = timeout
        self._worker: _Worker | None = None
        self._pending: list[Call] = []
        self._view: View | None = None

    @property
    def instructions(self) -> str:
        return self._current.instructions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._pending = []
        return self._call("reset", seed=seed, options=options)

    def step(self, action: str, /) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        return self._call("step", action)

    def get_state(self) -> Hashable:
        return self._current.state

    def set_state(self, state: Any, /) -> None:
        self._pending = [("set_state", (state,), {})]

    def reseed(self, key: Key, /) -> None:
        self._pending.append(("reseed", (key,), {}))

    def score(self) -> float:
        return self._call("score")

    def state_key(self) -> Hashable:
        return self._current.state_key

    def remaining(self) -> int:
        return self._current.remaining

    def close(self) -> None:
        """Ends the process; a further call starts a new one."""
        if self._worker is not None:
            self._worker.end()
        self._worker, self._view, self._pending = None, None, []

    @property
    def _current(self) -> View:
        if self._pending or self._view is None:
            self._call("remaining")
        assert self._view is not None  # every answer without an error has one
        return self._view

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of a method, after what is pending.

        Raises:
            EnvRaised: it raised what may be tried again. The environment is made anew.
            EnvBroken: it raised another error.
            EnvTimedOut: it took too long.
            EnvDied: its process ended.
            ConfigError: it raised that.
        """
        calls, self._pending, self._view = [*self._pending, (name, args, kwargs)], [], None
        try:
            if self._worker is None:
                self._worker = _Worker()
                self._worker.ask(self._spec, _START_TIMEOUT)
            answer = self._worker.ask(calls, self._timeout)
        except BaseException:
            if self._worker is None or self._worker.is_asked:
                self.close()  # its answer, if it still comes, is to this call and no other
            raise
        self._view = answer.view
        return answer.result


class _WithOracle(ProcessEnv):
    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        return self._call("oracle", noise, key)


class _WithLegalActions(ProcessEnv):
    def legal_actions(self) -> list[str]:
        return self._call("legal_actions")


class _WithRandomPlay(ProcessEnv):
    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        return self._call("play_randomly", keys, horizon)


class _WithPreparation(ProcessEnv):
    def prepare(self, seeds: Sequence[int], /) -> None:
        """Announces seeds at once, between any other calls: the state and what is pending stay as they are."""
        pending, view, self._pending = self._pending, self._view, []
        self._call("prepare", seeds)
        self._pending, self._view = pending, view


class _WithTools(ProcessEnv):
    def offer(self) -> Offer:
        offer: Offer = self._call("offer")
        return offer


# What an environment may have beside the contract, and who passes it on.
_OPTIONAL: Mapping[str, type[ProcessEnv]] = {
    HasOracle.__name__: _WithOracle,
    HasLegalActions.__name__: _WithLegalActions,
    HasRandomPlay.__name__: _WithRandomPlay,
    PreparesInstances.__name__: _WithPreparation,
    OffersTools.__name__: _WithTools,
}


def process_env(id: str, kwargs: dict[str, Any], timeout: float | None = None) -> ProcessEnv:
    """See `ProcessEnv`. No process starts before the first call, unless the entry point of the id is no class: then one
    makes an environment first, to see which class that is.

    Raises:
        EnvFault: that process failed.
        EnvBroken: the environment raised an error.
        ConfigError: it refuses its arguments.
    """
    entry_point = find_spec(id).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    made = made_by(creator) if isinstance(creator, type) else _made_elsewhere(id, pickle.dumps(kwargs))
    optional = tuple(_OPTIONAL[name] for name in made.optional)
    return type("ProcessEnv", (*optional, ProcessEnv), {})(id, kwargs, timeout, made.class_name)


@cache  # a run makes many environments of the same arguments
def _made_elsewhere(id: str, pickled_kwargs: bytes) -> Made:
    worker = _Worker()
    try:
        answer = worker.ask((id, pickle.loads(pickled_kwargs)), _START_TIMEOUT)
    finally:
        worker.end()
    made: Made = answer.result
    return made


class _Worker:
    """A process with one environment (`worker.main`), ended with this object at the latest."""

    def __init__(self) -> None:
        self.is_asked = False  # and has not answered
        ours, theirs = socketpair()
        with theirs:
            arguments = [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)]
            self._process = subprocess.Popen(
                arguments, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._connection = Connection(ours.detach())
        self.end = weakref.finalize(self, _end, self._process, self._connection)

    def ask(self, message: Any, timeout: float | None) -> Answer:
        self.is_asked = True
        try:
            self._connection.send(message)
            if not self._connection.poll(timeout):
                raise EnvTimedOut(f"no answer within {timeout:g} s")
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            self._connection.close()
            raise EnvDied(f"its process ended with exit status {end_group(self._process)}") from error
        self.is_asked = False
        if answer.raised is EnvBroken:
            raise EnvBroken(answer.error, answer.traceback)
        if answer.raised is not None:
            raised = answer.raised(answer.error)
            raised.add_note(answer.traceback)
            raise raised
        return answer


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    if not connection.closed:
        connection.close()
    if process.returncode is None:
        end_group(process)
