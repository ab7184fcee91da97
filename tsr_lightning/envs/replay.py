"""A fallback for text environments whose state cannot be restored: replay the episode from its seed.

    def make_riddle(**kwargs):
        return Replayed(Riddle(**kwargs), actions=["yes", "no"], max_turns=20)

    gymnasium.register("my/Riddle-v0", make_riddle)

`set_state` costs a reset and all steps so far, and a state grows with the episode. The environment must give the same
observations after `reset(seed=)` and the same responses, and draw noise from `np_random` alone. Each observation of a
replay is checked against the recorded one. Wrappers (TimeLimit and the like) may stay on: they are replayed as well.

What an environment hides, such as a number to guess, has to be in the state key, or all its instances are one:

    Replayed(Number(), actions=["1", "2", "3"], max_turns=4, hidden=lambda env: env.number)
"""

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key


class ReplayError(RuntimeError):
    """A replay differs from the episode that it repeats."""


class Recording(NamedTuple):
    """An episode since its reset."""

    seed: int
    options: str  # JSON
    events: tuple[str | Key, ...]  # responses, and the keys of reseeds
    observations: tuple[str, ...]  # the first one, and one for each response


class Replayed(gymnasium.Env[str, str]):
    """A text environment that replay makes branchable.

    Missing entries of `info` are filled in: `success` is a termination with a positive return, `action_is_valid` is
    true, `action_is_effective` says whether the state key changed.

    Args:
        env: any gymnasium environment with `Text` spaces, wrapped or not.
        actions: the legal responses, or a function that returns them from an observation and its info.
        max_turns: turns before the episode is truncated; by default the environment's own `max_episode_steps`.
        instructions: the system message.
        score: feedback in [0, 1] from an observation and the return so far; by default the return, squashed, and 1
            after a success.
        state_key: the state key from an observation; by default the observation itself, so that all keys differ where
            observations show the turn or the budget.
        hidden: what the state key has beside that, from the unwrapped environment: all that decides how an episode goes
            on and is in no observation, as numbers, strings and tuples. By default nothing is.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        actions: Sequence[str] | Callable[[str, dict[str, Any]], Sequence[str]],
        max_turns: int | None = None,
        instructions: str = "",
        score: Callable[[str, float], float] | None = None,
        state_key: Callable[[str], Hashable] | None = None,
        hidden: Callable[[Any], Hashable] | None = None,
    ) -> None:
        for name, space in (("action", env.action_space), ("observation", env.observation_space)):
            remedy = f"its {name} space is {space}; only environments with Text spaces can be replayed."
            require(isinstance(space, Text), "Replayed.env", env, remedy)
        if max_turns is None and env.spec is not None:
            max_turns = env.spec.max_episode_steps
        if max_turns is None or max_turns < 1:
            raise ConfigError(f"Replayed.max_turns is {max_turns}: give the turns of an episode of {env}, at least 1.")
        self._env, self._max_turns = env, max_turns
        self._actions = actions if callable(actions) else lambda observation, info: actions
        self._score, self._key, self._hidden = score, state_key, hidden
        self.instructions = instructions
        self.action_space, self.observation_space = env.action_space, env.observation_space
        self.render_mode = env.render_mode
        self._recording: Recording | None = None
        self._info: dict[str, Any] = {}
        self._return = 0.0
        self._ended = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        first = int(self.np_random.integers(1 << 31)) if seed is None else seed
        return self._begin(first, json.dumps(options)), dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before, key_before = self.get_state(), self.state_key()
        if self._ended:
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        self._recording = before._replace(
            events=(*before.events, action), observations=(*before.observations, observation)
        )
        truncated = truncated or (not terminated and self.remaining() == 0)
        self._ended = terminated or truncated
        self._info = {
            "success": terminated and self._return > 0,
            "action_is_valid": True,
            "action_is_effective": self.state_key() != key_before,
            **info,
        }
        return observation, float(reward), terminated, truncated, dict(self._info)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def get_state(self) -> Recording:
        if self._recording is None:
            raise ResetNeeded("there is no episode yet: call reset() or set_state() first")
        return self._recording

    def set_state(self, state: Recording, /) -> None:
        """Replays the episode of `state`; raises a ReplayError where it differs."""
        recorded = iter(state.observations)
        _check_equal(0, next(recorded), self._begin(state.seed, state.options))
        turn = 0
        for event in state.events:
            if isinstance(event, Key):
                self.reseed(event)
            else:
                turn += 1
                _check_equal(turn, next(recorded), self.step(event)[0])

    def reseed(self, key: Key, /) -> None:
        recording = self.get_state()
        self._env.unwrapped.np_random = key.generator()
        self._recording = recording._replace(events=(*recording.events, key))

    def score(self) -> float:
        """The given function, or 1 after a success and else of the return r: `(1 + r / (1 + |r|)) / 2 < 1`."""
        observation, value = self.get_state().observations[-1], self._return
        if self._score is not None:
            return self._score(observation, value)
        return 1.0 if self._info["success"] else (1 + value / (1 + abs(value))) / 2

    def state_key(self) -> Hashable:
        observation = self.get_state().observations[-1]
        key = observation if self._key is None else self._key(observation)
        return key if self._hidden is None else (key, self._hidden(self._env.unwrapped))

    def remaining(self) -> int:
        """Turns left."""
        return self._max_turns - len(self.get_state().observations) + 1

    def legal_actions(self) -> list[str]:
        return [] if self._ended else list(self._actions(self.get_state().observations[-1], self._info))

    def _begin(self, seed: int, options: str) -> str:
        observation, info = self._env.reset(seed=seed, options=json.loads(options))
        self._recording = Recording(seed, options, (), (observation,))
        self._info = {"success": False, "action_is_valid": True, "action_is_effective": False, **info}
        self._return, self._ended = 0.0, False
        return observation


def _check_equal(turn: int, recorded: str, observation: str) -> None:
    if observation != recorded:
        raise ReplayError(
            f"turn {turn} of a replay shows {observation!r}, and {recorded!r} was recorded: the environment has noise "
            "that reset(seed=) does not set, or keeps something of an earlier episode"
        )
