"""Checks what an environment reports of a reset or a step, at once: numbers are finite, flags are flags, messages are
text. NumPy's scalars are taken."""

import math
from collections.abc import Hashable, Mapping
from numbers import Real
from typing import Any, NamedTuple, Protocol

import numpy as np

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle
from tsr_lightning.envs.tools import OffersTools
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message, to_messages


class InvalidOutcome(Exception):
    """An environment's report breaks the contract; the message says how, and the remedy."""


class Initial(NamedTuple):
    """An environment's report of a reset."""

    messages: tuple[Message, ...]  # the instructions and tools first, if there are any
    state: Any
    state_key: Hashable
    remaining: int
    score: float | None  # None where it is not wanted


class Outcome(NamedTuple):
    """An environment's report of a step."""

    messages: tuple[Message, ...]
    reward: float
    terminated: bool
    truncated: bool
    succeeded: bool
    valid: bool
    effective: bool
    action: str  # as it read the response; the response itself where it does not say
    state: Any
    state_key: Hashable
    remaining: int
    score: float | None  # None where it is not wanted


class WithOracle(Branchable, HasOracle, Protocol):
    """An environment with an oracle."""


class WithLegalActions(Branchable, HasLegalActions, Protocol):
    """An environment that lists its legal actions."""


def reset(env: Branchable, instance: int, scored: bool, call_format: CallFormatName | None = None) -> Initial:
    """Begins an episode and reads its first state.

    Args:
        env: that is reset.
        instance: the seed of the episode.
        scored: whether the score is wanted.
        call_format: in which responses will call tools, where the environment offers some and prefers no other.
    """
    observation = first_observation(env, instance, call_format)
    score = finite("score()", env.score()) if scored else None
    instructions = one_text("instructions", env.instructions)  # read after the reset: they may be the instance's own
    system = (Message("system", instructions),) if instructions else ()
    messages = (*system, *offered(env), *texts(observation))
    return Initial(messages, env.get_state(), hashable(env.state_key()), env.remaining(), score)


def first_observation(env: Branchable, instance: int, call_format: CallFormatName | None) -> Any:
    """Begins an episode, whose tools are called in a format where the environment prefers no other."""
    options = {"options": {"call_format": call_format}} if isinstance(env, OffersTools) else {}
    observation, _ = env.reset(seed=instance, **options)
    return observation


def offered(env: Branchable) -> tuple[Message, ...]:
    """The message that offers the tools of an episode; none where the environment has none."""
    return (env.offer().message(),) if isinstance(env, OffersTools) else ()


def play(env: Branchable, state: Any, noise: Key, text: str, scored: bool) -> Outcome:
    """Plays a response from a state and reads the next one."""
    env.set_state(state)
    env.reseed(noise)
    observation, reward, terminated, truncated, info = env.step(text)
    outcome = Outcome(
        messages=texts(observation),
        reward=finite("the reward", reward),
        terminated=flag("terminated", terminated),
        truncated=flag("truncated", truncated),
        succeeded=_of_info(info, "success"),
        valid=_of_info(info, "action_is_valid"),
        effective=_of_info(info, "action_is_effective"),
        action=one_text("info['parsed_action']", info.get("parsed_action", text)),
        state=env.get_state(),
        state_key=hashable(env.state_key()),
        remaining=env.remaining(),
        score=finite("score()", env.score()) if scored else None,
    )
    if outcome.score == 1.0 and (outcome.terminated or outcome.truncated) and not outcome.succeeded:
        raise InvalidOutcome("score() is 1 in an episode that ended without success; keep it below")
    return outcome


def demonstrate(env: WithOracle, state: Any, noise: float, key: Key) -> str:
    """The oracle's response in a state."""
    env.set_state(state)
    return one_text("oracle()", env.oracle(noise, key))


def random_legal(env: WithLegalActions, state: Any, key: Key) -> str:
    """One of the legal actions in a state that has not ended, all equally likely.

    Raises:
        InvalidOutcome: there is none.
    """
    env.set_state(state)
    actions = [one_text("an action of legal_actions()", action) for action in env.legal_actions()]
    if not actions:
        raise InvalidOutcome("legal_actions() is empty in a state that has not ended; list what can be played there")
    return actions[int(key.uniform() * len(actions))]


def finite(name: str, value: object) -> float:
    """A reported number as a float.

    Raises:
        InvalidOutcome: it is no single number, or NaN or infinite.
    """
    if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
        raise InvalidOutcome(f"{name} is {value!r}; give a finite number")
    return float(value)


def flag(name: str, value: object) -> bool:
    """A reported flag as a bool.

    Raises:
        InvalidOutcome: it is none.
    """
    if not isinstance(value, bool | np.bool_ | int):
        raise InvalidOutcome(f"{name} is {value!r}; give True or False")
    return bool(value)


def one_text(name: str, value: object) -> str:
    """A reported text.

    Raises:
        InvalidOutcome: it is none.
    """
    if not isinstance(value, str):
        raise InvalidOutcome(f"{name} is {value!r}; give one string")
    return value


def texts(observation: Any) -> tuple[Message, ...]:
    """An observation as messages.

    Raises:
        InvalidOutcome: it is no text.
    """
    try:
        return to_messages(observation)
    except TypeError as error:
        raise InvalidOutcome(str(error)) from error


def hashable(state_key: Any) -> Hashable:
    """A state key.

    Raises:
        InvalidOutcome: it has no hash.
    """
    try:
        hash(state_key)
    except TypeError as error:
        raise InvalidOutcome(f"state_key() is {state_key!r}; make it of numbers, strings and tuples alone") from error
    return state_key


def _of_info(info: Mapping[str, Any], name: str) -> bool:
    if name not in info:
        raise InvalidOutcome(f"info has no {name!r}, only {', '.join(map(repr, info)) or 'nothing'}; let step give it")
    return flag(f"info[{name!r}]", info[name])
