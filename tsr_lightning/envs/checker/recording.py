"""Records of states and steps, and how two of them differ."""

import copy
import dataclasses
import numbers
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle
from tsr_lightning.envs.checker.factory import BranchabilityError
from tsr_lightning.rng import Key

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
    """All that a step shows."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    after: StateRecord

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Recorder:
    """Plays an environment and records it.

    Args:
        env: the environment.
        turns: the most that are played at a time.
        name: of the environment, for error messages.
        responses: what to play where it has no legal actions.
    """

    def __init__(self, env: Branchable, turns: int, name: str, responses: Sequence[str] = ()) -> None:
        self.env, self.turns, self.name, self.responses = env, turns, name, tuple(responses)
        self.lists_actions = env if isinstance(env, HasLegalActions) else None
        self.steps = 0

    def like(self, env: Branchable) -> "Recorder":
        """A recorder of another environment that was made alike."""
        return Recorder(env, self.turns, self.name, self.responses)

    def legal(self) -> tuple[str, ...]:
        return () if self.lists_actions is None else tuple(self.lists_actions.legal_actions())

    def record_state(self) -> StateRecord:
        record = StateRecord(self.env.score(), self.env.state_key(), self.env.remaining(), self.legal())
        if problem := _state_problem(record):
            raise BranchabilityError(f"{problem} ({self.name})")
        return record

    def step(self, response: str) -> StepRecord:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(response)
        try:
            # a copy, which an environment that reuses its dictionary cannot change later
            info = copy.deepcopy(info)
        except Exception as error:
            raise BranchabilityError(
                f"contract: info cannot be copied ({error}), at {response!r}: fill it with plain values ({self.name})"
            ) from error
        return StepRecord(observation, reward, terminated, truncated, info, self.record_state())

    def play(self, responses: Iterable[str]) -> list[StepRecord]:
        """Responses that were played before, until the episode ends; an exception is recorded like an end."""
        steps: list[StepRecord] = []
        for response in responses:
            try:
                steps.append(self.step(response))
            except BranchabilityError:
                raise
            except Exception as error:
                steps.append(StepRecord(f"step() raised {error!r}", 0.0, False, True, {}, self.record_state()))
            if steps[-1].done:
                break
        return steps

    def play_randomly(self, key: Key, turns: int | None = None) -> tuple[list[str], list[StepRecord]]:
        """Random responses, most of them legal, until the episode ends."""
        responses, steps = list[str](), list[StepRecord]()
        for turn in range(self.turns if turns is None else turns):
            responses.append(self._random_response(key.fold_in(turn)))
            steps.append(self.step(responses[-1]))
            if steps[-1].done:
                break
        return responses, steps

    def play_oracle(self, oracle: HasOracle) -> tuple[list[str], list[StepRecord]]:
        """The oracle's responses, until the episode ends."""
        responses, steps = list[str](), list[StepRecord]()
        while len(steps) < self.turns and not (steps and steps[-1].done):
            responses.append(oracle.oracle())
            steps.append(self.step(responses[-1]))
        return responses, steps

    def _random_response(self, key: Key) -> str:
        choices = self.legal() or self.responses
        if key.uniform(0) < UNREADABLE_RATE or not choices:
            return UNREADABLE
        return choices[int(key.uniform(1) * len(choices))]


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
    for field in dataclasses.fields(expected):
        before, now = getattr(expected, field.name), getattr(got, field.name)
        if isinstance(before, StateRecord):
            found |= differences(before, now)
        elif not same(before, now):
            found[field.name] = f"{now!r} instead of {before!r}"
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
    if isinstance(one, str | int):
        return bool(one == other)
    if isinstance(one, float | np.floating):
        return bool(one == other or (one != one and other != other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(np.all((one == other) | ((one != one) & (other != other))))
    return bool(data_equivalence(one, other, exact=True))
