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

from tsr_lightning.envs.base import Branchable
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
    error: str = ""  # "Class: message" of what was raised, with which the sequence ended
    traceback: str = ""
    is_config_error: bool = False


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
        except Exception as error:
            env = None  # it may be in any state: the next call gets a new one
            text = f"{type(error).__name__}: {error}" if not isinstance(error, ConfigError) else str(error)
            answer = Answer(None, None, text, traceback.format_exc(), isinstance(error, ConfigError))
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


def _end_with_parent(parent: int) -> None:
    """An environment that hangs does not see that the connection closed."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    os._exit(1)
