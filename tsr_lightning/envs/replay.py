"""A fallback for text environments that cannot be snapshotted: play everything again from the seed.

    def make_riddle(**kwargs):
        return Replayed(Riddle(**kwargs), actions=["yes", "no"], max_turns=20)

    gymnasium.register("my/Riddle-v0", make_riddle)

What it costs: `set_state` takes a reset and as many steps as were played, and a state grows with the episode. What it
asks of the environment: after `reset(seed=)`, the same answers give the same observations, and chance comes from
`np_random` alone. Each observation of a replay is checked against the recorded one. Unlike search on a bare
environment, wrappers (TimeLimit and the like) may stay on: they are replayed as well.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

Legal = Sequence[str] | Callable[[str, dict[str, Any]], Sequence[str]]


class ReplayError(RuntimeError):
    """A replay went another way than the episode that it repeats."""


class Recording(NamedTuple):
    """An episode from its reset on."""

    seed: int
    options: str  # JSON
    events: tuple[str | Key, ...]  # answers, and the keys of reseeds
    observations: tuple[str, ...]  # the first one, and one for each answer


class Replayed(gymnasium.Env[str, str]):
    """A text environment, made branchable by replay.

    What `info` lacks is filled in: `success` is the end with a positive return, `action_is_valid` is true,
    `action_is_effective` says whether the observation changed.

    Args:
        env: any gymnasium environment with `Text` spaces, wrapped or not.
        actions: the answers that can be given, or what finds them from an observation and its info.
        max_turns: turns before the episode is truncated; by default the environment's own `max_episode_steps`.
        instructions: the system message.
        score: feedback in [0, 1] from an observation and the return so far; by default the return, squashed, and 1
            after a success.
        state_key: the situation behind an observation; by default the observation, so that one which tells the turn or
            the budget makes all situations differ.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        actions: Legal,
        max_turns: int | None = None,
        instructions: str = "",
        score: Callable[[str, float], float] | None = None,
        state_key: Callable[[str], Hashable] | None = None,
    ) -> None:
        for name, space in (("action", env.action_space), ("observation", env.observation_space)):
            if not isinstance(space, Text):
                raise ConfigError(f"env {env} has the {name} space {space}: only environments of text can be replayed.")
        limit = max_turns if max_turns is not None or env.spec is None else env.spec.max_episode_steps
        if limit is None or limit < 1:
            raise ConfigError(f"max_turns is {limit}: say after how many turns an episode of {env} is cut, at least 1.")
        self._env, self._actions, self._max_turns, self._rules = env, actions, limit, instructions
        self._score, self._key = score, state_key
        self.action_space, self.observation_space = env.action_space, env.observation_space
        self.render_mode = env.render_mode
        self._recording: Recording | None = None
        self._info: dict[str, Any] = {}
        self._return = 0.0
        self._over = False

    @property
    def instructions(self) -> str:
        return self._rules

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        begin = int(self.np_random.integers(1 << 31)) if seed is None else seed
        observation, info = self._begin(begin, json.dumps(options))
        return observation, dict(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self._now()
        if self._over:
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        self._recording = before._replace(
            events=(*before.events, action), observations=(*before.observations, observation)
        )
        truncated = truncated or (not terminated and self.remaining() == 0)
        self._over = terminated or truncated
        self._info = {
            "success": terminated and self._return > 0,
            "action_is_valid": True,
            "action_is_effective": observation != before.observations[-1],
            **info,
        }
        return observation, float(reward), terminated, truncated, dict(self._info)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def get_state(self) -> Recording:
        return self._now()

    def set_state(self, state: Recording, /) -> None:
        """Plays the episode of `state` again; a ReplayError says where it went another way."""
        recorded = iter(state.observations)
        _demand_equal(0, next(recorded), self._begin(state.seed, state.options)[0])
        turn = 0
        for event in state.events:
            if isinstance(event, Key):
                self.reseed(event)
                continue
            turn += 1
            _demand_equal(turn, next(recorded), self.step(event)[0])

    def reseed(self, key: Key, /) -> None:
        now = self._now()
        self._env.unwrapped.np_random = key.generator()
        self._recording = now._replace(events=(*now.events, key))

    def score(self) -> float:
        """The user's function, or 1 after a success and else the return so far: r -> (1 + r / (1 + |r|)) / 2 < 1."""
        observation, value = self._now().observations[-1], self._return
        if self._score is not None:
            return self._score(observation, value)
        return 1.0 if self._info["success"] else (1 + value / (1 + abs(value))) / 2

    def state_key(self) -> Hashable:
        observation = self._now().observations[-1]
        return observation if self._key is None else self._key(observation)

    def remaining(self) -> int:
        """Turns."""
        return self._max_turns - len(self._now().observations) + 1

    def legal_actions(self) -> list[str]:
        if self._over:
            return []
        if callable(self._actions):
            return list(self._actions(self._now().observations[-1], self._info))
        return list(self._actions)

    def _now(self) -> Recording:
        if self._recording is None:
            raise ResetNeeded("there is no episode yet: call reset() or set_state() first")
        return self._recording

    def _begin(self, seed: int, options: str) -> tuple[str, dict[str, Any]]:
        observation, info = self._env.reset(seed=seed, options=json.loads(options))
        self._recording = Recording(seed, options, (), (observation,))
        self._info = {"success": False, "action_is_valid": True, "action_is_effective": False, **info}
        self._return, self._over = 0.0, False
        return observation, self._info


def _demand_equal(turn: int, recorded: str, observation: str) -> None:
    if observation != recorded:
        raise ReplayError(
            f"turn {turn} of a replay shows {observation!r} and not {recorded!r} as recorded: the environment draws "
            "from something that reset(seed=) does not set, or keeps something of an earlier episode"
        )
