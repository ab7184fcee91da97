"""Two puzzles without a score of their own, and a policy that answers with legal actions at random."""

import math
from abc import abstractmethod
from collections.abc import Hashable, Sequence

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message, Turn

NEIGHBOURS = {0: (1, 3), 1: (0, 2, 4), 2: (1, 5), 3: (0, 4), 4: (1, 3, 5), 5: (2, 4)}  # cells of two rows of three


class Puzzle(TextEnv[tuple[int, ...]]):
    """A puzzle whose actions are numbers, one a turn; solved in one state."""

    solved: tuple[int, ...]

    def read(self, response: str, limit: int) -> Answer:
        return Answer((response,), "") if response in self.legal_actions() else Answer((), "no legal action")

    def play(self, state: tuple[int, ...], actions: tuple[str, ...], noise: Draws) -> TurnResult[tuple[int, ...]]:
        after = self.after(state, int(actions[0]))
        return TurnResult(after, float(after == self.solved), effective=after != state, success=after == self.solved)

    @abstractmethod
    def after(self, state: tuple[int, ...], action: int) -> tuple[int, ...]:
        """The state that a legal action leads to."""

    @abstractmethod
    def choices(self, state: tuple[int, ...]) -> Sequence[int]:
        """The legal actions in a state."""

    def legal_actions(self) -> list[str]:
        return [] if self.has_ended() else [str(choice) for choice in self.choices(self.state)]

    def show(self, state: tuple[int, ...]) -> str:
        return " ".join(map(str, state))

    def score(self) -> float:
        return float(self.state == self.solved)

    def state_key(self) -> Hashable:
        return self.state

    def initial_state(self, seed: int) -> tuple[int, ...]:
        """The solved state, after ten random moves that leave it."""
        state, key = self.solved, Key(seed).fold_in("puzzle")
        while state == self.solved:
            for number in range(10):
                choices = self.choices(state)
                state = self.after(state, choices[int(key.uniform(number) * len(choices))])
            key = key.fold_in("again")
        return state


class Tiles(Puzzle):
    """Five sliding tiles on two rows of three; the action is the cell whose tile moves into the hole."""

    instructions = "Slide the tiles into order."
    solved = (1, 2, 3, 4, 5, 0)

    def choices(self, state: tuple[int, ...]) -> Sequence[int]:
        return NEIGHBOURS[state.index(0)]

    def after(self, state: tuple[int, ...], action: int) -> tuple[int, ...]:
        cells = list(state)
        hole = cells.index(0)
        cells[hole], cells[action] = cells[action], 0
        return tuple(cells)


class Hanoi(Puzzle):
    """Four discs on three pegs; the action 3 a + b moves the top disc of peg a to peg b."""

    instructions = "Move all discs to peg 2."
    solved = (2, 2, 2, 2)  # the peg of each disc, the smallest first

    def choices(self, state: tuple[int, ...]) -> Sequence[int]:
        tops = [state.index(peg) if peg in state else len(state) for peg in range(3)]
        return [3 * a + b for a in range(3) for b in range(3) if tops[a] < tops[b]]

    def after(self, state: tuple[int, ...], action: int) -> tuple[int, ...]:
        origin, destination = divmod(action, 3)
        disc = state.index(origin)
        return (*state[:disc], destination, *state[disc + 1 :])


class LastText:
    """A chat format of one token per character, of the last observation."""

    call_format: CallFormatName = "hermes"  # of tools, which the puzzles have none of

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1].content))

    def read(self, response: Sequence[int], prompt: Sequence[int] = ()) -> str:
        return "".join(map(chr, response))

    def write(self, text: str, prompt: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(map(ord, text))


class Uniform(Engine):
    """A policy whose responses are the digits 0 to 8, all equally likely: what is illegal costs a turn."""

    def __init__(self) -> None:
        self._costs = Costs()

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        self._costs += Costs(tokens_generated=sum(len(prompt.seeds) for prompt in prompts))
        return [
            [Response((ord("0") + Key(seed).bits() % 9,), (-2.197,), True) for seed in each.seeds] for each in prompts
        ]

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        raise NotImplementedError("no strategy here is scored by a critic")

    def take_costs(self) -> Costs:
        costs, self._costs = self._costs, Costs()
        return costs


def _digit(key: Key) -> Response:
    return Response((ord("0") + key.bits() % 9,), (-math.log(9),), True)
