"""Environments of one turn, from a data set and a reward function.

    gymnasium.register("Sums-v0", SingleTurnEnv, kwargs={"rows": "sums.jsonl", "reward": reward})

An instance is a row: the observation is its prompt, the response ends the episode, and `reward(response, row)` is its
return. `SolvedSingleTurnEnv` is the same for rows that hold a solution.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.base import Observation
from tsr_lightning.envs.outcome import finite
from tsr_lightning.envs.rows import Row, messages_in, read_rows
from tsr_lightning.envs.text_env import AnyText
from tsr_lightning.envs.validate import noise_has_key
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key

Reward = Callable[[str, dict[str, Any]], float]

_LONGEST = 1 << 20  # characters of a prompt or a response
_OFFERED = 256  # the most solutions that are legal actions


class Answered(NamedTuple):
    """The state of an episode."""

    row: int
    response: str | None = None
    reward: float = 0.0


class SingleTurnEnv(gymnasium.Env[Any, str]):
    """Rows of a data set, each answered by one response that a reward function judges.

    `data.held_out.instances` rows are held out by their prompts, so that rows of an equal prompt are held out
    together. An empty response is invalid, and is rewarded all the same.

    Args:
        rows: a .jsonl or .csv file, or the rows, as mappings from columns to values.
        reward: from a response and its row: a finite number, always the same for the same arguments.
        prompt: the column of the prompt: a text, or messages, `[{"role": "user", "content": "..."}]`.
        instructions: the system message before every prompt; "" for none.
        success_at: the reward from which on a response is a success. Search ranks by reward / success_at within [0, 1].
    """

    metadata = {"render_modes": []}  # noqa: RUF012, gymnasium's own form

    def __init__(
        self,
        rows: str | Path | Iterable[Row],
        reward: Reward,
        *,
        prompt: str = "prompt",
        instructions: str = "",
        success_at: float = 1.0,
    ) -> None:
        name = type(self).__name__
        require(callable(reward), f"{name}.reward", reward, "give a function of a response and its row.")
        require(isinstance(instructions, str), f"{name}.instructions", instructions, "give a text.")
        valid = isinstance(success_at, int | float) and 0 < success_at < float("inf")
        require(valid, f"{name}.success_at", success_at, "give a reward above 0.")
        self.rows = read_rows(f"{name}.rows", rows)
        self.instructions = instructions
        self._reward, self._success_at = reward, success_at
        self._prompts = [_prompt(f"{name}.rows", number, row, prompt) for number, row in enumerate(self.rows, start=1)]
        self.observation_space = AnyText(_LONGEST, min_length=0)
        self.action_space = AnyText(_LONGEST, min_length=0)
        self._state: Answered | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The row of the current episode."""
        return dict(self.rows[self.get_state().row])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins with the row that `seed` draws."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        drawn = int(Key(0).fold_in("row", seed).uniform() * len(self.rows))
        self._state = Answered(drawn)
        return self._prompts[drawn], _info(success=False, valid=True, effective=False)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        state = self.get_state()
        if state.response is not None:
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        reward = finite("the reward", self._reward(action, self.row))
        self._state = state._replace(response=action, reward=reward)
        answered = bool(action.strip())
        return "", reward, True, False, _info(success=self._succeeded, valid=answered, effective=answered)

    def get_state(self) -> Answered:
        if self._state is None:
            raise ResetNeeded("there is no episode yet: call reset() or set_state() first")
        return self._state

    def set_state(self, state: Answered, /) -> None:
        self._state = state

    def reseed(self, key: Key, /) -> None:
        """Changes nothing: there is no noise."""

    def score(self) -> float:
        """The reward of the response as a share of `success_at`, within [0, 1]; 0 before it."""
        return min(max(self.get_state().reward / self._success_at, 0.0), 1.0)

    def state_key(self) -> Hashable:
        """The prompt and the response, without the space around it."""
        state = self.get_state()
        shown = self._prompts[state.row]
        prompt = shown if isinstance(shown, str) else tuple((message.role, message.content) for message in shown)
        return prompt, (state.response or "").strip()

    def remaining(self) -> int:
        """Responses left: one before the response, none after it."""
        return int(self.get_state().response is None)

    @property
    def _succeeded(self) -> bool:
        return self.get_state().reward >= self._success_at


class SolvedSingleTurnEnv(SingleTurnEnv):
    """A `SingleTurnEnv` whose rows hold a solution: an oracle for demonstrations, and answers of the right form.

    Args:
        rows: as for `SingleTurnEnv`.
        reward: as for `SingleTurnEnv`.
        solution: the column of a response that solves the row; a number is written as text.
        others: as for `SingleTurnEnv`.
    """

    def __init__(
        self, rows: str | Path | Iterable[Row], reward: Reward, *, solution: str = "solution", **others: Any
    ) -> None:
        super().__init__(rows, reward, **others)
        for number, row in enumerate(self.rows, start=1):
            if not isinstance(row.get(solution), str | int | float):
                raise ConfigError(
                    f"{type(self).__name__}.rows: the {solution!r} of row {number} is {row.get(solution)!r}; give a "
                    "text or a number, name the column by solution, or use SingleTurnEnv, which needs none."
                )
        self._solution = solution

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """The row's solution or, with probability `noise`, one of `legal_actions`, drawn from `key`."""
        noise_has_key(noise, key)
        if noise and key is not None and key.uniform(0) < noise:
            return self._solutions[int(key.uniform(1) * len(self._solutions))]
        return str(self.row[self._solution])

    def legal_actions(self) -> list[str]:
        """Solutions of the data set, whichever row they solve; none after the response."""
        return list(self._solutions) if self.remaining() else []

    @cached_property
    def _solutions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(row[self._solution]) for row in self.rows))[:_OFFERED]


def _info(*, success: bool, valid: bool, effective: bool) -> dict[str, Any]:
    return {"success": success, "action_is_valid": valid, "action_is_effective": effective}


def _prompt(key: str, number: int, row: Row, column: str) -> Observation:
    """A row's prompt as a text, or as messages."""
    if column not in row:
        columns = ", ".join(map(repr, row)) or "none"
        raise ConfigError(f"{key}: row {number} has no {column!r}, only {columns}; name the column by prompt.")
    value = row[column]
    if isinstance(value, str) and value.strip():
        return value
    messages = messages_in(value)
    if not messages:
        raise ConfigError(
            f"{key}: the {column!r} of row {number} is {value!r}; give a text, or messages with role and content."
        )
    return messages
