"""The other end of a `ProcessEnv`: serves one environment in a process of its own, until the connection closes.

Imports no more than the environment does, so that a process is there within half a second and costs little memory.
"""

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Hashable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tsr_lightning.envs.base import (
    Branchable,
    EnvBroken,
    EnvRaised,
    HasLegalActions,
    HasOracle,
    HasRandomPlay,
    PreparesInstances,
)
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.outcome import InvalidOutcome
from tsr_lightning.envs.process_group import end_own_group
from tsr_lightning.envs.retried import FAULTS, describe
from tsr_lightning.envs.tools import OffersTools
from tsr_lightning.errors import ConfigError, named

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method's name and its arguments

_AS_THEY_ARE = (ConfigError, InvalidOutcome)  # errors whose message says all
_BEFORE_AN_EPISODE = {"prepare"}  # methods that may be called where there is no state yet
_PARENT_CHECK = 1.0  # seconds between looks at whether the parent still lives


class View(NamedTuple):
    """The properties of a state that the contract names, sent along so that asking needs no further message."""

    state: Hashable
    state_key: Hashable
    remaining: int
    instructions: str


class Made(NamedTuple):
    """The class and the optional protocols of an environment."""

    class_name: str
    optional: tuple[str, ...]  # names of the protocols of `OPTIONAL` that it has


OPTIONAL = (HasOracle, HasLegalActions, HasRandomPlay, PreparesInstances, OffersTools)  # protocols beside the contract


def made_by(creator: type) -> Made:
    """The same by its class alone."""
    return Made(creator.__name__, tuple(protocol.__name__ for protocol in OPTIONAL if issubclass(creator, protocol)))


class Answer(NamedTuple):
    """To a sequence of calls."""

    result: Any = None  # of the last call; a Made after none
    view: View | None = None  # of the state after it; None after a sequence that needs no episode
    raised: type[Exception] | None = (
        None  # the error that ended the sequence: one of `_AS_THEY_ARE`, or what stands for it
    )
    error: str = ""  # its message; where the class is EnvRaised or EnvBroken with class, file and line
    traceback: str = ""


def main(fileno: int) -> None:
    """Serves the connection with this file descriptor: first (id, arguments) of the environment, then its calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which closes the connection
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(fileno)
    id, kwargs = connection.recv()
    env: Branchable | None = None
    calls: Sequence[Call] = ()
    while True:
        try:
            if env is None:
                env = make_env(id, **kwargs)
            message = _pickled(_answer(env, calls))
        except BaseException as error:  # SystemExit too, which is no way to end an episode
            env = None  # it may be in any state: the next call gets a new one
            message = _pickled(_failed(error))
        try:
            connection.send_bytes(message)
            calls = connection.recv()
        except (EOFError, OSError):
            end_own_group()


def _answer(env: Branchable, calls: Sequence[Call]) -> Answer:
    if not calls:
        return Answer(made_by(type(env)))
    result = None
    for name, args, kwargs in calls:
        result = getattr(env, name)(*args, **kwargs)
    if _BEFORE_AN_EPISODE.issuperset(name for name, _, _ in calls):
        return Answer(result)
    return Answer(result, View(env.get_state(), env.state_key(), env.remaining(), env.instructions))


def _pickled(answer: Answer) -> bytes:
    """An answer as a message; raises an InvalidOutcome that names the part that cannot be one."""
    try:
        return pickle.dumps(answer)
    except Exception:
        parts = {"the result": answer.result, **(answer.view._asdict() if answer.view else {})}
        for name, part in parts.items():
            _check_pickled(name, part)
        raise


def _check_pickled(name: str, part: Any) -> None:
    try:
        pickle.dumps(part)
    except Exception as error:  # of any class, as objects may define
        raise InvalidOutcome(
            f"{name} cannot be pickled, which data.env_processes needs ({named(error)}); make it of plain values, or "
            "set data.env_processes to false"
        ) from error


def _failed(error: BaseException) -> Answer:
    for known in _AS_THEY_ARE:
        if isinstance(error, known):
            return Answer(None, None, known, str(error))
    raised = EnvRaised if isinstance(error, FAULTS) else EnvBroken
    return Answer(None, None, raised, describe(error), traceback.format_exc())


def _end_with_parent(parent: int) -> None:
    """An environment that hangs does not see that the connection closed."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    end_own_group()  # with what the environment has started
