"""Every environment of this project as a taskset of verifiers (github.com/PrimeIntellect-ai/verifiers), version 0.4.

Its plugins are modules of one name, so two lines are yours, `tsr_tasks.py`:

    from tsr_lightning.outward.verifiers import *
    from tsr_lightning.outward.verifiers import __all__

The environment answers as the user, and the sum of its rewards is the reward.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from tsr_lightning.outward.episode import Episode

__all__ = ["TSRData", "TSREnv", "TSREnvConfig", "TSRTask", "TSRTaskset", "TSRTasksetConfig"]


class TSRTasksetConfig(vf.TasksetConfig):
    env: str
    """Gymnasium id, or `package.module:Env-v0`."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    first_seed: int = 0
    """The seed of the first task; each has the one that follows."""


class TSRData(vf.TaskData):
    env: str
    env_kwargs: dict[str, Any]
    seed: int


class TSRTask(vf.Task[TSRData, vf.State, vf.TaskConfig]):
    """An episode."""


class TSRTaskset(vf.Taskset[TSRTask, TSRTasksetConfig]):
    """Episodes without end, one for each seed."""

    INFINITE = True

    def load(self) -> Iterator[TSRTask]:
        config = self.config
        for seed in itertools.count(config.first_seed):
            episode = Episode(config.env, seed, config.env_kwargs)
            system = [message.content for message in episode.opening if message.role == "system"]
            prompt = [message.content for message in episode.opening if message.role != "system"]
            episode.close()
            data = TSRData(
                name=f"{config.env}#{seed}",
                system_prompt="\n\n".join(system) or None,
                prompt="\n\n".join(prompt),
                env=config.env,
                env_kwargs=config.env_kwargs,
                seed=seed,
            )
            yield TSRTask(data, config.task)


class TSREnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class TSREnv(vf.Env[TSREnvConfig]):
    """Plays an episode as the player's user."""

    async def run(self, task: TSRTask, agents: vf.Agents) -> None:
        data = task.data
        episode = Episode(data.env, data.seed, data.env_kwargs)
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                outcome = episode.play(segment.last_reply)
                if episode.ended:
                    break
                segment = await interaction.turn("\n\n".join(message.content for message in outcome.messages))
        interaction.trace.record_reward("tsr_return", episode.total)
        interaction.trace.record_metrics(episode.figures())
        episode.close()
