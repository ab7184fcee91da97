"""The boundary between a run and the code of environments, where their errors are classified.

Bad input (ConfigError) and what may work at the next try (`faults.FAULTS`) pass; whatever else an environment raises is
a mistake in its program, and ends the run with the line that made it.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec

from tsr_lightning.envs.base import EnvBroken
from tsr_lightning.envs.outcome import InvalidOutcome
from tsr_lightning.envs.process import ProcessEnv
from tsr_lightning.envs.retried import FAULTS, describe
from tsr_lightning.errors import ConfigError, RunError

ResultT = TypeVar("ResultT")

_EXCERPT = 80  # characters of a response in a sentence


class CallFailed(RunError):
    """A call failed that may work at the next try."""


@dataclass(frozen=True, slots=True)
class Call:
    """Names a call of an environment in a sentence.

    Args:
        env: the environment, or its id where there is none yet.
        method: the method of the contract that is called, or the first of them.
        instance: the seed of the episode; None where there is none yet.
        response: that a step plays; None for other calls.
    """

    env: object
    method: str
    instance: int | None = None
    response: str | None = None

    def __str__(self) -> str:
        places = [] if self.instance is None else [f"instance {self.instance}"]
        if self.response is not None:
            cut = self.response[:_EXCERPT] + ("..." if len(self.response) > _EXCERPT else "")
            places.append(f"response {cut!r}")
        return f"{self.method} of {name_of(self.env)}" + (f" ({', '.join(places)})" if places else "")


def bounded(call: Call, act: Callable[[], ResultT]) -> ResultT:
    """The result of a call.

    Raises:
        ConfigError: the environment refuses its arguments.
        RunError: its program is wrong.
        EnvFault, OSError, subprocess.TimeoutExpired: it failed, and may be tried again.
    """
    try:
        return act()
    except (ConfigError, RunError, KeyboardInterrupt, *FAULTS):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and type(error) is not SystemExit:  # Lightning's, which ends the run itself
            raise
        raise _broken(call, error) from error


def final(call: Call, act: Callable[[], ResultT]) -> ResultT:
    """The result of a call. Whatever fails raises a RunError: a CallFailed where it may be tried again."""
    try:
        return bounded(call, act)
    except FAULTS as error:
        raise CallFailed(f"{call} failed: {describe(error)}; see that the environment can be played") from error


def retried(retries: int, act: Callable[[], ResultT]) -> ResultT:
    """The result of `final` calls that begin with a reset, all of which are made again after a failure.

    Raises:
        RunError: the program of the environment is wrong, or one of the calls has failed once more than `retries`.
    """
    for _ in range(retries):
        try:
            return act()
        except CallFailed:
            continue
    return act()


def name_of(env: object) -> str:
    """The id by which an environment is made, or its class."""
    match env:
        case str():
            return env
        case ProcessEnv(id=id):
            return id
        case gymnasium.Env(spec=EnvSpec(id=id)):
            return id
        case _:
            return type(env).__name__


def _broken(call: Call, error: BaseException) -> RunError:
    if isinstance(error, InvalidOutcome):
        return RunError(f"{call} is wrong: {error}")
    remedy = "fix the environment; only EnvFault, OSError, time-outs and a process that died are tried again"
    if isinstance(error, EnvBroken):
        return RunError(f"{call} raised {error}; {remedy}", error.traceback)
    return RunError(f"{call} raised {describe(error)}; {remedy}", _traceback(error))


def _traceback(error: BaseException) -> str:
    """The traceback of an error from the environment's own frames on."""
    frames: Any = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
