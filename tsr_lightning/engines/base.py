"""The contract of generation: token ids and keys in, token ids and log-probabilities out. Knows no text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tsr_lightning.costs import Costs


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn, and so at which temperature log-probabilities are computed.

    Args:
        temperature: softmax temperature; 0 takes the most likely token.
        max_response_tokens: the most tokens that one turn may say.
    """

    temperature: float = 1.0
    max_response_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Prompt:
    """One context to respond to, `len(keys)` times."""

    ids: tuple[int, ...]  # [P]
    keys: tuple[int, ...]  # [C] one key of the policy stream per response
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Response:
    """What the policy said, as it said it."""

    ids: tuple[int, ...]  # [R] the sampled ids, the end token included where it was sampled
    logprobs: tuple[float, ...]  # [R] of those ids, at the sampling temperature
    finished: bool  # False: cut by the budget before an end token


class Engine(Protocol):
    """Draws responses. The draw of token `i` of a response is `Key(key).uniform(i)`: no generator, no hidden order."""

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        """Responses grouped by prompt, in the order of its keys."""
        ...

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        """The critic's value at the end of each prompt."""
        ...

    def take_costs(self) -> Costs:
        """What was computed since the last call."""
        ...

    def sync(self) -> None:
        """Takes over the policy's weights as they are now; does nothing where the engine reads them in place."""
        ...

    def release(self) -> None:
        """Gives memory back that another phase can use."""
        ...

    def close(self) -> None:
        """Gives all memory back; the engine is not used again."""
        ...


class EngineSpec(ABC):
    """Which engine generates. Frozen dataclasses derive from it: their fields are the arguments in YAML."""

    @abstractmethod
    def build(self, model: Any, end_ids: frozenset[int], context_tokens: int) -> Engine:
        """The engine of a run.

        Args:
            model: the policy as an engine sees it.
            end_ids: tokens that end a response.
            context_tokens: the most tokens of a prompt and its response together.
        """
