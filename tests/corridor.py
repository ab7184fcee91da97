"""A user's environment, written without `TextEnv` and without an oracle. Tests copy it to where a user keeps it."""

from collections.abc import Hashable
from typing import Any

import gymnasium

from tsr_lightning.envs.text import CHARSET
from tsr_lightning.rng import Key

END, TURNS = 5, 3


class Corridor(gymnasium.Env[str, str]):
    """Each letter r or l of a response is a step right or left; the door is at the right end, and a step may slip."""

    instructions = "Say r to go right and l to go left. The door is at the right end."
    metadata = {"render_modes": []}  # noqa: RUF012  (gymnasium's)
    observation_space = gymnasium.spaces.Text(64, charset=CHARSET)
    action_space = gymnasium.spaces.Text(64, charset=CHARSET)

    def __init__(self, slip: float = 0.1) -> None:
        self.slip = slip
        self.place, self.turn, self.key, self.drawn = 0, 0, Key(0), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31)) if seed is None else seed
        self.place, self.turn, self.key, self.drawn = number % 3, 0, Key(number), 0
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.place
        moves = [1 if letter == "r" else -1 for letter in action if letter in "rl"]
        for move in moves:
            if self.key.uniform(self.drawn) >= self.slip:
                self.place = min(max(self.place + move, 0), END)
            self.drawn += 1
        self.turn += 1
        success = self.place == END
        reward = float(success) + 0.01 * (self.place - before)
        info = {"success": success, "action_is_valid": bool(moves), "action_is_effective": self.place != before}
        return self._observation(), reward, success, self.turn == TURNS and not success, info

    def get_state(self) -> Hashable:
        return (self.place, self.turn, self.key, self.drawn)

    def set_state(self, state: Any) -> None:
        self.place, self.turn, self.key, self.drawn = state

    def reseed(self, key: Key) -> None:
        self.key, self.drawn = key, 0

    def score(self) -> float:
        return self.place / END

    def state_key(self) -> Hashable:
        return self.place

    def remaining(self) -> int:
        return TURNS - self.turn

    def legal_actions(self) -> list[str]:
        return ["r", "l"]

    def _observation(self) -> str:
        return "." * self.place + "P" + "." * (END - self.place) + f" {TURNS - self.turn} left"


if "Corridor-v0" not in gymnasium.registry:  # as `corridor` and as `tests.corridor`
    gymnasium.register("Corridor-v0", Corridor)
