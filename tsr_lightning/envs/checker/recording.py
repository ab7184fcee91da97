"""Records of states and steps, and how two of them differ."""

import copy
import numbers
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsr_lightning.envs.base import Branchable, HasLegalActions, Observation
from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import to_messages

FLAGS = ("success", "action_is_valid", "action_is_effective")  # of info
UNREADABLE = "\t??\t"
UNREADABLE_RATE = 0.15  # of random responses


@dataclass(frozen=True)
class StateRecord:
    """What a state shows without a step."""

    score: float
    state_key: Hashable
    remaining: int
    legal: tuple[str, ...]  # () without legal_actions


@dataclass(frozen=True)
class StepRecord:
    """A response and all that its step shows; or what a reset shows, as a response of ""."""

    response: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    after: StateRecord

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Recorder:
    """Plays an environment and records it."""

    env: Branchable
    factory: EnvFactory
    turns: int  # the most that are played at a time
    responses: tuple[str, ...]  # what to play where the environment has no legal actions
    steps: int = 0  # of this environment

    def twin(self) -> "Recorder | None":
        """A recorder of another environment made alike; None if none can be made."""
        make = self.factory.make
        return None if make is None else Recorder(make(), self.factory, self.turns, self.responses)

    def legal(self) -> tuple[str, ...]:
        return tuple(self.env.legal_actions()) if isinstance(self.env, HasLegalActions) else ()

    def record_state(self) -> StateRecord:
        record = StateRecord(self.env.score(), self.env.state_key(), self.env.remaining(), self.legal())
        if problem := _state_problem(record):
            raise BranchabilityError(f"{problem} ({self.factory.name})")
        return record

    def reset(self, seed: int) -> StepRecord:
        observation, _ = self.env.reset(seed=seed)
        return StepRecord("", _as_text(observation), 0.0, False, False, {}, self.record_state())

    def restore(self, state: Any, *keys: Key) -> None:
        """Restores a state and reseeds it with one key after another."""
        self.env.set_state(state)
        for key in keys:
            self.env.reseed(key)

    def step(self, response: str) -> StepRecord:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(response)
        try:
            # a copy, which an environment that reuses its dictionary cannot change later
            info = copy.deepcopy(info)
        except Exception as error:
            raise BranchabilityError(
                f"contract: info cannot be copied ({error}), at {response!r}: fill it with plain values "
                f"({self.factory.name})"
            ) from error
        return StepRecord(response, _as_text(observation), reward, terminated, truncated, info, self.record_state())

    def play(self, responses: Iterable[str]) -> list[StepRecord]:
        """Plays responses until the episode ends."""
        return _until_done(map(self.step, responses))

    def replay(self, responses: Iterable[str]) -> list[StepRecord]:
        """Plays responses that were played before; an exception is recorded like an end."""
        return _until_done(map(self._step_or_exception, responses))

    def play_randomly(self, key: Key, turns: int | None = None) -> list[StepRecord]:
        """Random responses, most of them legal, until the episode ends."""
        count = self.turns if turns is None else turns
        return self.play(self._random_response(key.fold_in(turn)) for turn in range(count))

    def _step_or_exception(self, response: str) -> StepRecord:
        try:
            return self.step(response)
        except BranchabilityError:
            raise
        except Exception as error:
            raised = f"step() raised {error!r}"
            return StepRecord(response, raised, 0.0, False, True, {}, self.record_state())

    def _random_response(self, key: Key) -> str:
        choices = self.legal() or self.responses
        if key.uniform(0) < UNREADABLE_RATE or not choices:
            return UNREADABLE
        return choices[int(key.uniform(1) * len(choices))]


def _as_text(observation: Observation) -> str:
    """Messages as lines, each after its role."""
    if isinstance(observation, str):
        return observation
    return "\n".join(f"{message.role}: {message.content}" for message in to_messages(observation))


def _until_done(steps: Iterable[StepRecord]) -> list[StepRecord]:
    played: list[StepRecord] = []
    for step in steps:
        played.append(step)
        if step.done:
            break
    return played


def _state_problem(record: StateRecord) -> str:
    score: Any = record.score  # an environment may break its own annotations
    remaining: Any = record.remaining
    if not isinstance(score, numbers.Real):
        return f"score: {score!r} is no number"
    if not 0.0 <= float(score) <= 1.0:  # nor is nan
        return f"score: {score} is not in [0, 1]"
    if not _plain(record.state_key):
        return f"state_key: {record.state_key!r} is not made of numbers, strings and tuples alone"
    if not isinstance(remaining, numbers.Integral):
        return f"budget: remaining() is {remaining!r}, no whole number"
    if not all(isinstance(action, str) for action in record.legal):
        return f"contract: legal_actions() has something other than strings: {record.legal}"
    return ""


def _plain(key: object) -> bool:
    if isinstance(key, tuple):
        return all(_plain(part) for part in key)
    return key is None or isinstance(key, bool | int | float | str | bytes)


def differences(expected: StateRecord | StepRecord, got: StateRecord | StepRecord) -> dict[str, str]:
    """What differs, by name: "3 instead of 5"."""
    found: dict[str, str] = {}
    for name, before in vars(expected).items():
        now = vars(got)[name]
        if isinstance(before, StateRecord):
            found |= differences(before, now)
        elif not same(before, now):
            found[name] = f"{now!r} instead of {before!r}"
    return found


def first_difference(expected: Sequence[StepRecord], got: Sequence[StepRecord]) -> dict[str, str]:
    """What differs at the first step that differs; empty if none does. Another length shows in a flag before."""
    return next((found for pair in zip(expected, got, strict=False) if (found := differences(*pair))), {})


def listed(found: dict[str, str]) -> str:
    return "; ".join(f"{name} {difference}" for name, difference in found.items())


def same(one: Any, other: Any) -> bool:
    """Equal in type and value; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and same(one.tolist(), other.tolist())
    return bool(one == other or (one != one and other != other))
