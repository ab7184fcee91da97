"""Fakes of the contracts that search depends on: a small noisy environment, a chat format and a scripted engine."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response, Sampling
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.retry import Retry
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message, Turn

GOAL, TURNS = 9, 6
MOVES = {"a": 1, "b": 2, "c": -1, "d": 0}
LETTERS = ("aabbcdx", "abbbcdd")  # first letters of a response, for prompts of even and of odd length
MAX_LETTERS = 3  # of a response
GREEDY = Key(5)  # names the draws at temperature 0, of which a prompt has only one response


class Walk:
    """Walk from 0..3 to exactly 9 in six turns; a turn costs 0.01, an invalid one 0.1 more.

    Args:
        slip: probability that a move goes one step further.
    """

    instructions = "walk"

    def __init__(self, slip: float = 0.25) -> None:
        self.slip = slip
        self.place, self.turn, self.key, self.drawn = 0, 0, Key(0), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.place, self.turn, self.key, self.drawn = (seed or 0) % 4, 0, Key(seed or 0), 0
        return self._observation(), {}

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        move = MOVES.get(action[:1])
        before = self.place
        if move is not None:
            self.place += move + (self.key.uniform(self.drawn) < self.slip)
            self.drawn += 1
        self.turn += 1
        success = self.place == GOAL
        reward = success - 0.01 - 0.1 * (move is None)
        info = {
            "success": success,
            "action_is_valid": move is not None,
            "action_is_effective": self.place != before,
        }
        return self._observation(), reward, success, self.turn >= TURNS and not success, info

    def get_state(self) -> Hashable:
        return (self.place, self.turn, self.key, self.drawn)

    def set_state(self, state: Any, /) -> None:
        self.place, self.turn, self.key, self.drawn = state

    def reseed(self, key: Key, /) -> None:
        self.key, self.drawn = key, 0

    def score(self) -> float:
        return 1 - min(abs(GOAL - self.place), GOAL) / GOAL

    def state_key(self) -> Hashable:
        return self.place

    def remaining(self) -> int:
        return TURNS - self.turn

    def legal_actions(self) -> list[str]:
        return list(MOVES)

    def _observation(self) -> str:
        return f"{self.place},{TURNS - self.turn};"


class Guided(Walk):
    """The same, with an oracle."""

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        if key is not None and key.uniform() < noise:
            return self.legal_actions()[int(key.uniform(1) * len(MOVES))]
        return "b" if GOAL - self.place > 1 else "a" if self.place < GOAL else "c"


class Letters:
    """A chat format with one token per letter."""

    call_format: CallFormatName = "hermes"

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        text = "".join(_join(turn.messages) + self.read(turn.response) for turn in turns) + _join(messages)
        return tuple(map(ord, text))

    def read(self, response: Sequence[int], prompt: Sequence[int] = ()) -> str:
        return "".join(map(chr, response))

    def write(self, text: str, prompt: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(map(ord, text))


def _join(messages: Sequence[Message]) -> str:
    return "".join(message.content for message in messages)


class Scripted(Engine):
    """An engine that draws up to three letters by the seed, depending on the prompt; or one of the given answers.

    Args:
        answers: the responses to choose from, uniformly.
    """

    def __init__(self, answers: Sequence[str] = ()) -> None:
        self.answers = answers
        self.calls: list[str] = []  # names of the methods called, in order
        self.costs = Costs()

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        self.calls.append("generate")
        keys = [[GREEDY if temperature == 0 else Key(seed) for seed in prompt.seeds] for prompt in prompts]
        groups = [[self.another(prompt, key) for key in own] for prompt, own in zip(prompts, keys, strict=True)]
        self.costs += Costs(tokens_generated=sum(len(response.ids) for group in groups for response in group))
        return groups

    def another(self, prompt: Prompt, key: Key) -> Response:
        """The first of some draws that is not excluded; the last one where all are."""
        excluded = {response.ids for response in prompt.excluded}
        draws = [self.respond(prompt.ids, key, prompt.max_new_tokens)]
        while draws[-1].ids in excluded and len(draws) < 100:
            draws.append(self.respond(prompt.ids, key.fold_in(len(draws)), prompt.max_new_tokens))
        return draws[-1]

    def respond(self, ids: Sequence[int], key: Key, room: int) -> Response:
        choices = self.answers or LETTERS[len(ids) % 2]
        text = choices[int(key.uniform() * len(choices))]
        if not self.answers:
            text += "." * int(key.uniform(1) * MAX_LETTERS)
        return Response(tuple(map(ord, text[:room])), (-1.0,) * len(text[:room]), len(text) <= room)

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        self.calls.append("values")
        return [self.value(ids) for ids in prompts]

    @staticmethod
    def value(ids: Sequence[int]) -> float:
        return (sum(ids) % 7) / 7

    def take_costs(self) -> Costs:
        costs, self.costs = self.costs, Costs()
        return costs


class Varied(Scripted):
    """The same, surer of some letters than of others."""

    def respond(self, ids: Sequence[int], key: Key, room: int) -> Response:
        response = super().respond(ids, key, room)
        return replace(response, logprobs=tuple(-0.1 - ord_ % 5 * 0.3 for ord_ in response.ids))


def driver(
    env: Any = None,
    engine: Scripted | None = None,
    *,
    concurrency: int = 256,
    limits: TokenLimits = TokenLimits(1000),  # noqa: B008  (frozen)
    max_response_tokens: int = 64,
    keep_tree: bool = False,
    keep_state_keys: bool = False,
    workers: Sequence[Any] = (),
    retry: Retry | None = None,
    record: bool = False,
) -> Driver:
    sampling = Sampling(1.0, max_response_tokens)
    env = Walk() if env is None else env
    others = [[worker] for worker in workers]
    return Driver(
        *([env], Letters(), engine or Scripted(), sampling, limits, concurrency, keep_tree, keep_state_keys, others),
        retry=retry,
        record=record,
    )


def tasks(strategy: Strategy, count: int = 40, run: int = 7) -> list[SearchTask]:
    return [SearchTask(i // 4, i % 4, strategy, Key(run).fold_in(i)) for i in range(count)]
