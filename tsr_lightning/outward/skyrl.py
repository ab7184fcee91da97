"""Every environment of this project as one of SkyRL-gym's (github.com/NovaSky-AI/SkyRL), by the name "tsr".

Its import registers them, for `environment.env_class=tsr`, and `row("tsr/Sokoban-v0", seed, size=[6, 6])` is a row of a
data set.
"""

import json
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from tsr_lightning.outward.episode import Episode

NAME = "tsr"


class TSREnv(BaseTextEnv):
    """An episode.

    Args:
        env_config: SkyRL's, not read.
        extras: of the row: `env`, `seed` and `env_kwargs`, the last as JSON, which Parquet keeps as it is.
    """

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        row = extras or {}
        self._episode = Episode(row["env"], int(row["seed"]), json.loads(row["env_kwargs"]))

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """The beginning of the episode; the prompt of the row is the same."""
        return _conversation(self._episode.opening), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        outcome = self._episode.play(action)
        self.turns = self._episode.turns
        return BaseTextEnvStepOutput(
            observations=_conversation(outcome.messages),
            reward=outcome.reward,
            done=self._episode.ended,
            metadata={"success": outcome.succeeded, "action_is_valid": outcome.valid},
        )

    def get_metrics(self) -> dict[str, Any]:
        return self._episode.figures()

    def close(self) -> None:
        self._episode.close()


def row(env: str, seed: int, **env_kwargs: Any) -> dict[str, Any]:
    """A row of SkyRL's data set: an episode and its prompt."""
    episode = Episode(env, seed, env_kwargs)
    prompt = _conversation(episode.opening)
    episode.close()
    return {"prompt": prompt, "env_class": NAME, "env": env, "seed": seed, "env_kwargs": json.dumps(env_kwargs)}


def _conversation(messages: Any) -> ConversationType:
    return [{"role": message.role, "content": message.content} for message in messages]


skyrl_gym.register(NAME, entry_point=TSREnv)
