"""Records of states and steps, and how two of them differ."""

import numbers
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tsr_lightning.envs.base import Branchable, HasLegalActions, plain_key
from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory
from tsr_lightning.envs.checker.reported import FLAGS, read_reset, read_step
from tsr_lightning.envs.outcome import InvalidOutcome
from tsr_lightning.envs.retried import FAULTS
from tsr_lightning.rng import Key

ReadT = TypeVar("ReadT")

_COMPARED = ("the reward", "terminated", *FLAGS, "the next key", "legal")  # in `outcome`
UNREADABLE = "\t??\t"
UNREADABLE_RATE = 0.15  # of random responses


@dataclass(frozen=True)
class StateRecord:
    """The properties of a state, read without a step."""

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
    instructions: str = ""  # of a reset

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
        env = self.factory.another()
        return None if env is None else Recorder(env, self.factory, self.turns, self.responses)

    def legal(self) -> tuple[str, ...]:
        if not isinstance(self.env, HasLegalActions):
            return ()
        actions: Any = self.env.legal_actions()  # an environment may break its own annotations
        if isinstance(actions, Sequence) and all(isinstance(action, str) for action in actions):
            return tuple(actions)
        raise BranchabilityError(
            f"contract: legal_actions() is {actions!r}; give a list of texts ({self.factory.name})"
        )

    def record_state(self) -> StateRecord:
        score: Any = self.env.score()
        remaining: Any = self.env.remaining()
        key = plain_key(self.env.state_key())
        if problem := _state_problem(score, key, remaining):
            raise BranchabilityError(f"{problem} ({self.factory.name})")
        return StateRecord(float(score), key, int(remaining), self.legal())

    def reset(self, seed: int) -> StepRecord:
        returned = self.env.reset(seed=seed)
        observation, info, instructions = self._read(
            f"seed {seed}", partial(read_reset, returned, self.env.instructions)
        )
        return StepRecord("", observation, 0.0, False, False, info, self.record_state(), instructions)

    def restore(self, state: Any, *keys: Key) -> None:
        """Restores a state and reseeds it with one key after another."""
        self.env.set_state(state)
        for key in keys:
            self.env.reseed(key)

    def step(self, response: str) -> StepRecord:
        self.steps += 1
        returned = self.env.step(response)
        read = self._read(f"response {response!r}", partial(read_step, returned))
        return StepRecord(response, *read, self.record_state())

    def _read(self, place: str, read: Callable[[], ReadT]) -> ReadT:
        try:
            return read()
        except InvalidOutcome as error:
            raise BranchabilityError(f"contract: {error} ({self.factory.name}, {place})") from error

    def play(self, responses: Iterable[str]) -> list[StepRecord]:
        """Plays responses until the episode ends."""
        return _until_done(map(self.step, responses))

    def replay(self, responses: Iterable[str]) -> list[StepRecord]:
        """Plays responses that were played before; an exception is recorded like an end, but for one that a run would
        try again."""
        return _until_done(map(self._step_or_exception, responses))

    def play_randomly(self, key: Key, turns: int | None = None) -> list[StepRecord]:
        """Random responses, most of them legal, until the episode ends."""
        count = self.turns if turns is None else turns
        return self.play(self._random_response(key.fold_in(turn)) for turn in range(count))

    def _step_or_exception(self, response: str) -> StepRecord:
        try:
            return self.step(response)
        except (BranchabilityError, *FAULTS):
            raise
        except Exception as error:
            raised = f"step() raised {error!r}"
            return StepRecord(response, raised, 0.0, False, True, {}, self.record_state())

    def _random_response(self, key: Key) -> str:
        choices = self.legal() or self.responses
        if key.uniform(0) < UNREADABLE_RATE or not choices:
            return UNREADABLE
        return choices[int(key.uniform(1) * len(choices))]


def _until_done(steps: Iterable[StepRecord]) -> list[StepRecord]:
    played: list[StepRecord] = []
    for step in steps:
        played.append(step)
        if step.done:
            break
    return played


def _state_problem(score: Any, state_key: Any, remaining: Any) -> str:
    if not isinstance(score, numbers.Real):
        return f"score: {score!r} is no number"
    if not 0.0 <= float(score) <= 1.0:  # nor is nan
        return f"score: {score} is not in [0, 1]"
    if not _plain(state_key):
        return f"state_key: {state_key!r} is not made of numbers, strings and tuples alone"
    if not isinstance(remaining, numbers.Integral):
        return f"budget: remaining() is {remaining!r}, no whole number"
    return ""


def _plain(key: object) -> bool:
    if isinstance(key, tuple):
        return all(_plain(part) for part in key)
    return key is None or isinstance(key, bool | int | float | str | bytes)


def differences(expected: StateRecord | StepRecord, got: StateRecord | StepRecord) -> dict[str, str]:
    """Lists the differences by name: "3 instead of 5"."""
    found: dict[str, str] = {}
    for name, before in vars(expected).items():
        now = vars(got)[name]
        if isinstance(before, StateRecord):
            found |= differences(before, now)
        elif not same(before, now):
            found[name] = f"{now!r} instead of {before!r}"
    return found


def first_difference(expected: Sequence[StepRecord], got: Sequence[StepRecord]) -> dict[str, str]:
    """Lists the differences of the first step that differs, none if none. Another length shows in a flag before."""
    return next((found for pair in zip(expected, got, strict=False) if (found := differences(*pair))), {})


def outcome_difference(one: StepRecord, other: StepRecord) -> str:
    """Names the first thing that two steps do differently, "" if none. Observations are not compared."""
    for name, a, b in zip(_COMPARED, outcome(one), outcome(other), strict=True):
        if a != b:
            return f"{name} is {a!r} and {b!r}"
    return ""


def outcome(step: StepRecord) -> tuple[Hashable, ...]:
    """The parts of a step that one state, action and key decide."""
    flags = [step.info.get(name) for name in FLAGS]
    legal = () if step.done else tuple(sorted(step.after.legal))
    return round(float(step.reward), 9), step.terminated, *flags, step.after.state_key, legal


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
