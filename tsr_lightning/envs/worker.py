"""The other end of a `ProcessEnv`: serves one environment in a process of its own, until the connection closes.

Imports no more than the environment does, so that a process is there within half a second and costs little memory.
"""

import os
import signal
import threading
import time
import traceback
from collections.abc import Hashable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tsr_lightning.envs.base import Branchable, EnvBroken, EnvRaised
from tsr_lightning.envs.faults import FAULTS, describe
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method's name and its arguments

_PARENT_CHECK = 5.0  # seconds between looks at whether the parent still lives


class View(NamedTuple):
    """What the contract lets one ask of a state, sent along so that asking needs no further message."""

    state: Hashable
    state_key: Hashable
    remaining: int
    instructions: str


class Answer(NamedTuple):
    """To a sequence of calls."""

    result: Any = None  # of the last call
    view: View | None = None  # of the state after it
    raised: type[Exception] | None = None  # the sequence ended with an error: ConfigError, EnvRaised or EnvBroken
    error: str = ""  # its message, for the others than a ConfigError with class, file and line
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
            answer = _answer(env, calls)
        except BaseException as error:  # SystemExit too, which is no way to end an episode
            env = None  # it may be in any state: the next call gets a new one
            answer = _failed(error)
        try:
            connection.send(answer)
            calls = connection.recv()
        except (EOFError, OSError):
            return


def _answer(env: Branchable, calls: Sequence[Call]) -> Answer:
    if not calls:
        return Answer()  # it is made
    result = None
    for name, args, kwargs in calls:
        result = getattr(env, name)(*args, **kwargs)
    return Answer(result, View(env.get_state(), env.state_key(), env.remaining(), env.instructions))


def _failed(error: BaseException) -> Answer:
    if isinstance(error, ConfigError):
        return Answer(None, None, ConfigError, str(error))
    raised = EnvRaised if isinstance(error, FAULTS) else EnvBroken
    return Answer(None, None, raised, describe(error), traceback.format_exc())


def _end_with_parent(parent: int) -> None:
    """An environment that hangs does not see that the connection closed."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    os._exit(1)
