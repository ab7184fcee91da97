"""A ladder of a few steps, and a policy with a table of logits: what search, credit and loss need, and no more.

The task's rules are stated twice: as the environment that search plays, and in exact.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gradients.enumeration import Choices
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message, Turn

ACTIONS = "ab"  # one step up, two steps up
TURN_COST = 0.05


class Rung(NamedTuple):
    """A state: its index is a row of the policy's table."""

    turns_left: int
    height: int


@dataclass(frozen=True)
class Rules:
    """Reach exactly the goal: 1 for that, and each turn costs 0.05. The episode ends there, above it, or out of turns.

    Args:
        goal: the rung to reach, from 0.
        turns: the most turns.
        slip: probability that a move goes one step further.
    """

    goal: int
    turns: int
    slip: float = 0.0

    @property
    def states(self) -> list[Rung]:
        """All that are not terminal."""
        return [Rung(left, height) for left in range(self.turns, 0, -1) for height in range(self.goal)]


class Ladder:
    """The environment. Its noise is enumerated, so `reseed` has nothing to do."""

    instructions = ""

    def __init__(
        self, rules: Rules, choices: Choices, scores: dict[Rung, float] | None = None, whole_key: bool = False
    ) -> None:
        self.rules, self.choices = rules, choices
        self.whole_key = whole_key  # the turns left are a part of the state key
        self.scores = scores  # by state; None: nearness to the goal
        self.state = Rung(rules.turns, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.state = Rung(self.rules.turns, 0)
        return self._observation(), {}

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        left, height = self.state
        height += 1 + ACTIONS.index(action)
        if self.rules.slip:
            height += self.choices.choose((1 - self.rules.slip, self.rules.slip))
        self.state = Rung(left - 1, height)
        success = height == self.rules.goal
        info = {"success": success, "action_is_valid": True, "action_is_effective": True}
        truncated = left == 1 and height < self.rules.goal
        return self._observation(), success - TURN_COST, height >= self.rules.goal, truncated, info

    def get_state(self) -> Rung:
        return self.state

    def set_state(self, state: Rung, /) -> None:
        self.state = state

    def reseed(self, key: Key, /) -> None:
        pass

    def score(self) -> float:
        if self.scores is not None:
            return self.scores.get(self.state, 0.0)
        return max(0.0, 1 - abs(self.rules.goal - self.state.height) / self.rules.goal)

    def state_key(self) -> tuple[int, ...]:
        return self.state if self.whole_key else (self.state.height,)

    def remaining(self) -> int:
        return self.state.turns_left

    def _observation(self) -> str:
        return chr(self.state.turns_left) + chr(self.state.height)


class LastObservation:
    """A chat format of two tokens, the state; so the policy is Markov."""

    call_format: CallFormatName = "hermes"

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1].content))

    def read(self, response: Sequence[int], prompt: Sequence[int] = ()) -> str:
        return ACTIONS[response[0]]

    def write(self, text: str, prompt: Sequence[int] = ()) -> tuple[int, ...]:
        return (ACTIONS.index(text),)


class Table(Engine):
    """A policy with its own logits in every state, which draws by enumeration; its critic's values are given."""

    def __init__(self, rules: Rules, choices: Choices) -> None:
        generator = torch.Generator().manual_seed(3)
        self.rows = {state: row for row, state in enumerate(rules.states)}
        self.logits = 0.7 * torch.randn(len(self.rows), len(ACTIONS), generator=generator, dtype=torch.float64)
        self.probabilities = self.logits.softmax(-1)
        self.choices = choices
        self.turns = 0  # drawn so far

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        return [[self._response(Rung(*prompt.ids), temperature) for _ in prompt.seeds] for prompt in prompts]

    def _response(self, state: Rung, temperature: float) -> Response:
        self.turns += 1
        row = self.probabilities[self.rows[state]]
        action = self.choices.choose(row.tolist()) if temperature else int(row.argmax())
        return Response((action,), (float(row[action].log()),), True)

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        raise NotImplementedError("no strategy here is scored by a critic")

    def take_costs(self) -> Costs:
        return Costs()

    def scores(self, turns: Sequence[tuple[Rung, int]]) -> Tensor:
        """d log pi(action) / d logits of each turn, [N, S, A]."""
        rows = torch.tensor([self.rows[state] for state, _ in turns])
        actions = torch.tensor([action for _, action in turns])
        scores = torch.zeros(len(turns), *self.logits.shape, dtype=torch.float64)
        own = torch.nn.functional.one_hot(actions, len(ACTIONS)) - self.probabilities[rows]
        scores[torch.arange(len(turns)), rows] = own
        return scores
