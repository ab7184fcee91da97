"""The contract between search and environments: a `gymnasium.Env` of text whose state can be restored.

`text_env.TextEnv` is a base class that has most of it. Knows no torch and no language model.
"""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tsr_lightning.errors import EnvFault
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Message

Observation = str | Sequence[Message]  # a text is one user message


@runtime_checkable
class Branchable(Protocol):
    """A text environment that search can branch.

    Turn and step limits live in the state, never in a wrapper: gymnasium's TimeLimit and OrderEnforcing break
    restoring. So environments are registered without `max_episode_steps`, and search works on `env.unwrapped`.

    `step` reports in `info`: `success` (the task is solved), `action_is_valid` (the text could be read as actions),
    `action_is_effective` (the state of the task changed, and so its key; never by a text that could not be read). It
    may report `parsed_action`, the action as it was read from the response, a text: responses with equal ones do the
    same in a state, so that tree and graph credit average their outcomes. Without it only equal texts are one action.
    """

    @property
    def instructions(self) -> str:
        """The system message, read after `reset`: it may be the instance's own; "" for none."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]: ...

    def step(self, action: str, /) -> tuple[Observation, float, bool, bool, dict[str, Any]]: ...

    def get_state(self) -> Hashable:
        """The whole state, immutable: all that `set_state` needs to go on exactly from here, randomness included."""

    def set_state(self, state: Any, /) -> None:
        """Restores what `get_state` returned, in any environment made with the same arguments."""

    def reseed(self, key: Key, /) -> None:
        """Draws all further noise from `key` alone: a branch must not see the real episode's future.

        Noise that the state has drawn in advance is replaced; score and state key stay as they are.
        """

    def score(self) -> float:
        """The task's own feedback on this state in [0, 1], higher is better, 1 when solved (the paper's S).

        Below 1 where an episode has ended unsolved. Never part of the reward and never in the observation, nor as a
        percentage.
        """

    def state_key(self) -> Hashable:
        """Equal for equal states, whatever budget is left; made of numbers, strings and tuples alone.

        Search keeps one of the states of an episode with equal keys. So equal keys promise, but for what the budget
        decides, equal legal actions, and after equal reseeds and actions equal rewards, ends, flags in `info` and keys;
        with an equal budget and return, equal scores too. A step without effect (`action_is_effective` False) and a
        reseed leave the key as it is.
        """

    def remaining(self) -> int:
        """The budget left before truncation, in the environment's own unit (actions or turns)."""


@runtime_checkable
class HasLegalActions(Protocol):
    """An environment that can list what to play. Search does not need it; the checker and new vocabularies use it."""

    def legal_actions(self) -> list[str]:
        """Responses of a single action that can be played now; none when the episode has ended."""


@runtime_checkable
class HasRandomPlay(Protocol):
    """An environment that plays random legal actions faster than step by step, and past the budget of its episodes."""

    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        """Plays one sequence of legal actions a key from the current state, whatever budget is left there: each action
        is equally likely, and all chance comes from the key.

        Returns how many actions led to a success: None where the task ended before, or `horizon` actions did not
        succeed. The state is left as it is.
        """


@runtime_checkable
class PreparesInstances(Protocol):
    """An environment whose instances take long to make and can be made in the background."""

    def prepare(self, seeds: Sequence[int], /) -> None:
        """Announces seeds that `reset` will be given. Changes nothing but how long that takes."""


@runtime_checkable
class HasOracle(Protocol):
    """An environment with a solver, for demonstrations (the strategy `Expert`)."""

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response that plays the next turn of a best solution; each action is, with probability `noise`, a
        random legal one instead, drawn from `key`. Asking leaves the state, and the noise to come, as they are."""


class EnvRaised(EnvFault):
    """An environment in a process of its own raised what may be tried again; the message is the error's."""


class EnvTimedOut(EnvFault):
    """A call of an environment took longer than allowed; its process was ended."""


class EnvDied(EnvFault):
    """The process of an environment ended by itself."""


class EnvBroken(Exception):
    """An environment in a process of its own raised an error that is a mistake in its program.

    Args:
        description: the error, with file and line.
        traceback: in that process.
    """

    def __init__(self, description: str, traceback: str) -> None:
        super().__init__(description, traceback)
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])


def fingerprint(state_key: Hashable) -> str:
    """A hash of a state key, the same in every process (Python's own hash of a string is salted), and of a NumPy number
    that of the equal one of Python."""
    text = repr(state_key)
    if "np." in text:
        text = repr(plain_key(state_key))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def plain_key(key: Any) -> Any:
    """A key whose NumPy scalars are Python's, within tuples too."""
    match key:
        case np.generic():
            return key.item()
        case tuple(_make=make):  # type: ignore[misc]  # a named one
            return make(map(plain_key, key))
        case tuple():
            return tuple(map(plain_key, key))
        case _:
            return key
