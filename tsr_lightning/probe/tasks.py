"""The tasks of the probe: answers of one token, each task isolating one thing that can fail."""

from typing import NamedTuple

import gymnasium

from tsr_lightning.envs.text import Answer
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.rng import Key

ID = "tsr_lightning.probe.tasks:Probe-v0"
_NUMBERS = 1000  # that a prompt may show, so that instances differ


class Asked(NamedTuple):
    number: int  # even: prompt A, odd: prompt B
    turn: int = 0
    right: int = 0  # answers so far
    first: bool = False  # whether the first answer was right
    draw: float = 0.0  # of the turn before, where states differ by it


class Probe(TextEnv[Asked]):
    """Asks for an answer that begins with one of a few characters.

    Args:
        right: first characters of right answers.
        wrong: of some answer that is not right.
        prefix: text that begins every response and is no part of the answer.
        by_prompt: whether prompt B wants the answers that are wrong for prompt A.
        turns: answers of an episode.
        first_alone: whether the first answer alone decides, and is paid for at the end.
        luck: the chance that the wrong reward is paid.
        blind: whether prompt A pays 1 nine times in ten and prompt B one time in ten, whatever the answer.
        distinct: whether no two answers lead to the same state, so that a search leaves none out as a duplicate.
    """

    instructions = ""

    def __init__(
        self,
        right: list[str],
        wrong: str,
        prefix: str = "",
        *,
        by_prompt: bool = False,
        turns: int = 1,
        first_alone: bool = False,
        luck: float = 0.0,
        blind: bool = False,
        distinct: bool = False,
    ) -> None:
        super().__init__(max_turns=turns, prompt_style="bare", format_penalty=0.0)
        self.right, self.wrong, self.prefix = right, wrong, prefix
        self.by_prompt, self.turns, self.first_alone = by_prompt, turns, first_alone
        self.luck, self.blind, self.distinct = luck, blind, distinct

    def initial_state(self, seed: int) -> Asked:
        return Asked(seed % _NUMBERS)

    def read(self, response: str, limit: int) -> Answer:
        return Answer((response.removeprefix(self.prefix).strip()[:1],))

    def is_right(self, answer: str, number: int) -> bool:
        """Whether an answer, by its first character, is the one that the prompt with this number asks for."""
        return (answer in self.right) != (self.by_prompt and number % 2 == 1)

    def play(self, state: Asked, actions: tuple[str, ...], noise: Draws) -> TurnResult[Asked]:
        right = self.is_right(actions[0], state.number)
        turn = state.turn + 1
        after = Asked(state.number, turn, state.right + right, right if turn == 1 else state.first)
        after = after._replace(draw=noise.uniform()) if self.distinct else after
        ended = turn == self.turns
        success = ended and (after.first if self.first_alone else after.right == turn)
        if self.blind:
            reward = float(noise.uniform() < (0.1 if state.number % 2 else 0.9))
        elif self.first_alone:
            reward = float(success)
        else:
            reward = (right != (self.luck > 0 and noise.uniform() < self.luck)) / self.turns
        return TurnResult(after, reward, success=success, terminated=ended)

    def show(self, state: Asked) -> str:
        return f"{'AB'[state.number % 2]} {state.number} {state.right if not self.first_alone else state.turn}"

    def score(self) -> float:
        state = self.state
        return float(state.first) if self.first_alone else state.right / self.turns

    def legal_actions(self) -> list[str]:
        return [self.prefix + self.right[0], self.prefix + self.wrong]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        wants_right = self.is_right(self.right[0], self.state.number)
        return self.legal_actions()[0 if wants_right else 1]


gymnasium.register("Probe-v0", f"{__name__}:Probe")
