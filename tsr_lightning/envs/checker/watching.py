"""An environment, watched: all that it shows at a moment and in a step, and how two such records differ."""

import copy
import dataclasses
import numbers
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from tsr_lightning.envs.base import Branchable, HasOracle
from tsr_lightning.envs.checker.factory import BranchabilityError
from tsr_lightning.rng import Key

UNREADABLE = "\t??\t"
UNREADABLE_SHARE = 0.15  # of the answers


@dataclass(frozen=True)
class Standing:
    """What a moment shows without a step."""

    score: float
    state_key: Hashable
    remaining: int
    legal: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """All that a step shows."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    standing: Standing

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class StepExecutor:
    """An environment, watched.

    Args:
        env: watched.
        turns: the most that are played at a time.
        name: of the environment, for the sentence of an error.
    """

    def __init__(self, env: Branchable, turns: int, name: str) -> None:
        self.env, self.turns, self.name = env, turns, name
        self.steps = 0

    def stand(self) -> Standing:
        env = self.env
        standing = Standing(env.score(), env.state_key(), env.remaining(), tuple(env.legal_actions()))
        if problem := _standing_problem(standing):
            raise BranchabilityError(f"{problem} ({self.name})")
        return standing

    def step(self, action: str) -> Seen:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        try:
            # a copy: an environment that hands out its own dictionary must not rewrite what was seen
            info = copy.deepcopy(info)
        except Exception as error:
            raise BranchabilityError(
                f"contract: info cannot be copied ({error}), at {action!r}: fill it with plain values ({self.name})"
            ) from error
        return Seen(observation, reward, terminated, truncated, info, self.stand())

    def play(self, actions: Iterable[str]) -> list[Seen]:
        """Answers that could be played before, up to the end of the episode; an exception is seen like an end."""
        seen: list[Seen] = []
        for action in actions:
            try:
                seen.append(self.step(action))
            except BranchabilityError:
                raise
            except Exception as error:
                seen.append(Seen(f"step() raised {error!r}", 0.0, False, True, {}, self.stand()))
            if seen[-1].done:
                break
        return seen

    def wander(self, key: Key, turns: int | None = None) -> tuple[list[str], list[Seen]]:
        """Random answers, most of them legal, up to the end of the episode."""
        actions, seen = list[str](), list[Seen]()
        for turn in range(self.turns if turns is None else turns):
            actions.append(self._random_answer(key.fold_in(turn)))
            seen.append(self.step(actions[-1]))
            if seen[-1].done:
                break
        return actions, seen

    def solve(self, solver: HasOracle) -> tuple[list[str], list[Seen]]:
        """The solver's answers, up to the end of the episode."""
        actions, seen = list[str](), list[Seen]()
        while len(seen) < self.turns and not (seen and seen[-1].done):
            actions.append(solver.oracle())
            seen.append(self.step(actions[-1]))
        return actions, seen

    def _random_answer(self, key: Key) -> str:
        legal = self.env.legal_actions()
        if key.uniform(0) < UNREADABLE_SHARE or not legal:
            return UNREADABLE
        return legal[int(key.uniform(1) * len(legal))]


def _standing_problem(standing: Standing) -> str:
    score: Any = standing.score  # an environment may break what its type says
    remaining: Any = standing.remaining
    if not isinstance(score, numbers.Real):
        return f"score: {score!r} is no number"
    if not 0.0 <= float(score) <= 1.0:  # nor is nan
        return f"score: {score} is not in [0, 1]"
    if not _plain(standing.state_key):
        return f"state_key: {standing.state_key!r} is not made of numbers, strings and tuples alone"
    if not isinstance(remaining, numbers.Integral):
        return f"budget: remaining() is {remaining!r}, no whole number"
    if not all(isinstance(action, str) for action in standing.legal):
        return f"contract: legal_actions() holds what is no string: {standing.legal}"
    return ""


def _plain(key: object) -> bool:
    if isinstance(key, tuple):
        return all(_plain(part) for part in key)
    return key is None or isinstance(key, bool | int | float | str | bytes)


def differing(expected: Standing | Seen, got: Standing | Seen) -> dict[str, str]:
    """By name, what differs: "3 instead of 5"."""
    names: dict[str, str] = {}
    for part in dataclasses.fields(expected):
        mine, theirs = getattr(expected, part.name), getattr(got, part.name)
        if isinstance(mine, Standing):
            names |= differing(mine, theirs)
        elif not alike(mine, theirs):
            names[part.name] = f"{theirs!r} instead of {mine!r}"
    return names


def first_difference(expected: Sequence[Seen], got: Sequence[Seen]) -> dict[str, str]:
    """What differs at the first step that differs; empty if none does. Who ends earlier differs in a flag before."""
    return next((names for pair in zip(expected, got, strict=False) if (names := differing(*pair))), {})


def told(names: dict[str, str]) -> str:
    return "; ".join(f"{name} {difference}" for name, difference in names.items())


def alike(one: Any, other: Any) -> bool:
    """Equal in type and value; nan is like nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, str | int):
        return bool(one == other)
    if isinstance(one, float | np.floating):
        return bool(one == other or (one != one and other != other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, np.ndarray):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and bool(np.all((one == other) | ((one != one) & (other != other))))
    return bool(data_equivalence(one, other, exact=True))
