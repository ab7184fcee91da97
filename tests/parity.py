"""A one-turn task: a response that begins with a character of even code wins."""

from collections.abc import Hashable
from typing import Any

import gymnasium

from tsr_lightning.envs.text import CHARSET
from tsr_lightning.rng import Key

# Of a run in which a tiny policy of random weights learns it: from 0.25 to over 0.9.
RUN: dict[str, Any] = {
    "model.optimizer.learning_rate": 0.005,
    "data.env": "parity:Parity-v0",
    "data.env_kwargs": "null",
    "data.instances": 16,
    "data.plan.init_args.count": 8,
    "data.sampling.max_response_tokens": 2,
    "data.held_out.instances": 128,
    "data.evaluations": '[{"name": "sampled", "temperature": 1.0, "samples": 1, "search": null}]',
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": "false",
    "trainer.max_epochs": 30,
    "trainer.check_val_every_n_epoch": 30,
    "trainer.callbacks": '[{"class_path": "callbacks.Evaluation"}]',
}


class Parity(gymnasium.Env[str, str]):
    """An untrained policy wins in a quarter of the episodes."""

    instructions = ""
    metadata = {"render_modes": []}  # noqa: RUF012  (gymnasium's)
    observation_space = gymnasium.spaces.Text(64, charset=CHARSET)
    action_space = gymnasium.spaces.Text(64, min_length=0, charset=CHARSET)

    def __init__(self) -> None:
        self.seed, self.code = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.code = (seed or 0) % 1000, 0
        return f"go {self.seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.code = ord(action[0]) if action else 1
        success = self.code % 2 == 0
        info = {"success": success, "action_is_valid": bool(action), "action_is_effective": True}
        return "gone", float(success), True, False, info

    def get_state(self) -> Hashable:
        return (self.seed, self.code)

    def set_state(self, state: Any) -> None:
        self.seed, self.code = state

    def reseed(self, key: Key) -> None:
        """Nothing is random."""

    def score(self) -> float:
        return float(self.code > 0 and self.code % 2 == 0)

    def state_key(self) -> Hashable:
        return (self.seed, self.code)

    def remaining(self) -> int:
        return 1

    def legal_actions(self) -> list[str]:
        return ["a", "b"]


gymnasium.register("Parity-v0", Parity)
