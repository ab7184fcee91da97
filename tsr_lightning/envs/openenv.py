"""Environments that a server of OpenEnv runs (github.com/meta-pytorch/OpenEnv), replayed, since they cannot go back.

    tsr fit ... --data.env tsr_lightning.envs.openenv:OpenEnv-v0
        --data.env_kwargs '{url: http://localhost:8000, action: message, max_turns: 10, actions: ["yes", "no"]}'

The server must draw its chance from the seed of `reset` and allow as many sessions as there are environments
(`max_concurrent_envs`): each has one, over a web socket of its own.

The protocol has no message that sets chance in the middle of an episode, so a reseed does not reach the server: every
branch of a search meets the chance of the real episode. Search then sees the future, and its trajectories succeed more
often than their actions deserve. Plain samples are not affected, and neither is a server without chance after `reset`.
"""

import json
from collections.abc import Hashable, Sequence
from typing import Any

import gymnasium

from tsr_lightning.envs.replay import Replayed
from tsr_lightning.envs.text_env import AnyText
from tsr_lightning.errors import ConfigError

_LONGEST = 1 << 20  # characters of an observation or a response
_REPORTED = ("done", "reward", "metadata")  # of an observation, beside what is seen
_COUNTED = ("episode_id", "step_count")  # of a state, different in every episode
_REFUSED = "VALIDATION_ERROR"  # the server's code for an action that it cannot read


class OpenEnv(gymnasium.Env[str, str]):
    """A session with a server. A response is one field of an action, or all of it as JSON.

    Args:
        url: of the server.
        action: the field of an action that a response is; "" for actions as JSON.
        observation: the field of an observation that is shown; "" for all, as JSON.
        success_at: the return from which on an episode that has ended is a success.
        seconds: to wait for an answer.
    """

    def __init__(
        self, url: str, *, action: str = "", observation: str = "", success_at: float = 1.0, seconds: float = 60.0
    ) -> None:
        try:
            from openenv.core.generic_client import GenericEnvClient
        except ImportError as error:
            remedy = "pip install 'tsr-lightning[openenv]'"
            raise ConfigError(f"OpenEnv needs the package openenv-core ({error}): {remedy}.") from error
        self._client: Any = GenericEnvClient(base_url=url, message_timeout_s=seconds).sync()
        self._action, self._observation, self._success_at = action, observation, success_at
        self.observation_space = AnyText(_LONGEST, min_length=0)
        self.action_space = AnyText(_LONGEST, min_length=0)
        self._return, self._seen = 0.0, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._return = 0.0
        self._seen = self._shown(self._client.reset(seed=seed).observation)
        return self._seen, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        try:
            result = self._client.step(self._read(action))
        except ValueError as error:
            return _refused(error)
        except RuntimeError as error:  # the client has no other class for what the server tells
            if _REFUSED not in str(error):
                raise
            return _refused(error)
        reward = float(result.reward or 0.0)
        self._return += reward
        success = result.done and self._return >= self._success_at
        self._seen = self._shown(result.observation)
        return self._seen, reward, result.done, False, {"success": success}

    def close(self) -> None:
        self._client.close()

    def state_key(self) -> Hashable:
        """The last observation of an accepted action, and the state that the server reports."""
        state = {key: value for key, value in self._client.state().items() if key not in _COUNTED}
        return self._seen, json.dumps(state, sort_keys=True)

    def _read(self, response: str) -> dict[str, Any]:
        if self._action:
            return {self._action: response}
        try:
            read = json.loads(response)
        except RecursionError as error:
            raise ValueError("an action is nested too deeply") from error
        if not isinstance(read, dict):
            raise ValueError("an action is a JSON object")
        return read

    def _shown(self, observation: dict[str, Any]) -> str:
        if self._observation:
            return str(observation[self._observation])
        return json.dumps({key: value for key, value in observation.items() if key not in _REPORTED})


def _refused(error: Exception) -> tuple[str, float, bool, bool, dict[str, Any]]:
    return f"Error: {error}", 0.0, False, False, {"action_is_valid": False, "action_is_effective": False}


def replayed(
    url: str,
    *,
    max_turns: int,
    actions: Sequence[str] = (),
    instructions: str = "",
    action: str = "",
    observation: str = "",
    success_at: float = 1.0,
    seconds: float = 60.0,
) -> Replayed:
    """An `OpenEnv` that can be branched: with the server's chance as it is in the real episode, which no reseed sets.

    Args:
        max_turns: responses before the episode is truncated.
        actions: legal responses, for random players.
        instructions: the system message.
    """
    env = OpenEnv(url, action=action, observation=observation, success_at=success_at, seconds=seconds)
    return Replayed(
        env,
        actions=actions,
        max_turns=max_turns,
        instructions=instructions,
        state_key=lambda observation: (),  # of an answer to a refused response too
        hidden=OpenEnv.state_key,
    )


gymnasium.register("OpenEnv-v0", "tsr_lightning.envs.openenv:replayed")
