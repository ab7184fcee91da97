"""A two-turn task: the first answer must begin with a character of even code, the second with one of odd code."""

from typing import NamedTuple

import gymnasium

from tsr_lightning.envs.text import Answer
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.rng import Key


class Progress(NamedTuple):
    seed: int
    turn: int = 0
    right: int = 0


class TwoTurns(TextEnv[Progress]):
    """An untrained policy succeeds in about a quarter of the episodes; the reward comes at the end."""

    instructions = ""

    def __init__(self) -> None:
        super().__init__(max_turns=2, prompt_style="bare", format_penalty=0.0)

    def initial_state(self, seed: int) -> Progress:
        return Progress(seed % 50)

    def read(self, response: str, limit: int) -> Answer:
        return Answer((response[:1],))

    def play(self, state: Progress, actions: tuple[str, ...], noise: Draws) -> TurnResult[Progress]:
        right = bool(actions[0]) and ord(actions[0]) % 2 == state.turn
        after = Progress(state.seed, state.turn + 1, state.right + right)
        success = after.right == 2
        return TurnResult(after, float(success), success=success, terminated=after.turn == 2)

    def show(self, state: Progress) -> str:
        return f"{'even' if state.turn == 0 else 'odd'} {state.seed}"

    def score(self) -> float:
        return self.state.right / 2

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        return "ba"[self.state.turn]

    def legal_actions(self) -> list[str]:
        return ["a", "b"]


gymnasium.register("TwoTurns-v0", TwoTurns)
