"""One episode as a conversation that somebody else keeps."""

from typing import Any

import gymnasium

from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.outcome import Outcome, play, reset
from tsr_lightning.policy.offer import offered
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Message


class Episode:
    """An episode of an environment, played by responses. Tools are explained in its system message.

    Args:
        env: gymnasium id, or `package.module:Env-v0`.
        seed: names the episode, noise included.
        env_kwargs: arguments of the environment.
    """

    def __init__(self, env: str, seed: int, env_kwargs: dict[str, Any]) -> None:
        self._env = make_env(env, **env_kwargs)
        initial = reset(self._env, seed, scored=False)
        shown = offered(list(initial.messages), None).shown
        self.opening = [message for message in shown if isinstance(message, Message)]
        self._state, self._key = initial.state, Key(seed).fold_in("outward")
        self.turns = self.valid_turns = 0
        self.total = 0.0
        self.succeeded = self.ended = False

    def play(self, response: str) -> Outcome:
        """Plays a response of an episode that has not ended."""
        outcome = play(self._env, self._state, self._key.fold_in(self.turns), response, scored=False)
        self._state = outcome.state
        self.turns, self.valid_turns = self.turns + 1, self.valid_turns + outcome.valid
        self.total += outcome.reward
        self.succeeded, self.ended = outcome.succeeded, outcome.terminated or outcome.truncated
        return outcome

    def figures(self) -> dict[str, float]:
        """What an evaluation shows of it."""
        valid = self.valid_turns / self.turns if self.turns else 0.0
        return {"success": float(self.succeeded), "return": self.total, "valid_actions": valid}

    def close(self) -> None:
        if isinstance(self._env, gymnasium.Env):
            self._env.close()
