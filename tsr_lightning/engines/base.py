"""The contract of generation: token ids and seeds in, token ids and log-probabilities out. Knows no text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from tsr_lightning.costs import Costs

if TYPE_CHECKING:  # who knows engines by their contract alone needs no torch
    from tsr_lightning.engines.local_model import Model


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of responses.

    Args:
        temperature: softmax temperature, also that of the log-probabilities; 0 takes the most likely token.
        max_response_tokens: the most tokens of one turn's response.
    """

    temperature: float = 1.0
    max_response_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Response:
    """A sampled response."""

    ids: tuple[int, ...]  # [R] the end token included where it was sampled
    logprobs: tuple[float, ...]  # [R] at the sampling temperature
    finished: bool  # False: cut by the budget before an end token


@dataclass(frozen=True, slots=True)
class Prompt:
    """A context, for `len(seeds)` responses."""

    ids: tuple[int, ...]  # [P]
    seeds: tuple[int, ...]  # [C] one of 64 bits per response
    max_new_tokens: int
    excluded: tuple[Response, ...] = ()  # of this prompt and temperature, none of which is sampled again


class Engine(Protocol):
    """Samples responses. One depends on its prompt, its seed and the temperature, and on no other randomness; the
    default engine draws token `i` with `Key(seed).uniform(i)`.

    A response is of the policy's distribution, under the condition that it is none of those that its prompt excludes.
    Its log-probabilities are without that condition. Where next to nothing else is left, nothing is excluded; so
    at temperature 0. An engine that cannot exclude says so by `EngineSpec.can_exclude`.
    """

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        """Responses grouped by prompt, in the order of its seeds."""
        ...

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        """The critic's value at the end of each prompt."""
        ...

    def take_costs(self) -> Costs:
        """Costs since the last call."""
        ...

    def sync(self) -> None:
        """Takes over the policy's weights as they are now; does nothing where the engine reads them in place, or where
        they have not changed (`engines.local_model.weights_version`). Called before every rollout, and before every
        batch of held-out instances."""
        return

    def release(self) -> None:
        """Gives back memory that another phase can use; the engine stays usable."""
        return

    def close(self) -> None:
        """Gives back everything; the engine is not used again."""
        return


@dataclass(frozen=True)
class EngineSpec(ABC):
    """The choice of an engine, and its settings: what `data.engine` names."""

    can_exclude: ClassVar[bool] = True  # the responses that a prompt names
    serves_ranks: ClassVar[bool] = True  # works in each of several processes
    takes_quantised: ClassVar[bool] = True  # weights of 4 bits

    def check(self) -> None:  # noqa: B027  (most engines need nothing)
        """Refuses, before a model loads, an engine that cannot run here."""

    @abstractmethod
    def build(self, model: "Model", end_ids: frozenset[int], context_tokens: int) -> Engine:
        """An engine for a whole run.

        Args:
            model: the policy.
            end_ids: tokens that end a response.
            context_tokens: the most tokens of a prompt and its response together.
        """
