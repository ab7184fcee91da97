"""Costs of rollouts."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Costs:
    """Counters of a rollout, which can be added and subtracted. Without another unit they count tokens."""

    tokens_computed: int = 0  # by the model, without padding
    tokens_prefilled: int = 0  # of these, the tokens of prompts
    tokens_padding: int = 0
    prompt_tokens: int = 0  # in all prompts, counted once per response
    tokens_generated: int = 0
    tokens_kept: int = 0  # of the generated ones, those in a trajectory
    scores_computed: int = 0  # attention scores (query-key products per head), padding included
    scores_needed: int = 0  # attention scores without padding
    env_steps: int = 0
    waves: int = 0
    seconds_generation: float = 0.0
    seconds_environment: float = 0.0  # not overlapped by generation
    env_errors: int = 0  # calls of an environment that raised, repeated ones included, as in the next two
    env_timeouts: int = 0  # calls that took longer than allowed
    env_deaths: int = 0  # calls during which the environment's process ended
    candidates_lost: int = 0  # responses whose step failed for good, where their search went on without them
    trajectories_lost: int = 0  # searches that ended without a trajectory

    @property
    def tokens_discarded(self) -> int:
        return self.tokens_generated - self.tokens_kept

    @property
    def prompt_tokens_saved(self) -> int:
        """Prompt tokens that the prefix cache made unnecessary to compute."""
        return self.prompt_tokens - self.tokens_prefilled

    @property
    def attention_padding_share(self) -> float:
        return 1 - self.scores_needed / self.scores_computed if self.scores_computed else 0.0

    @property
    def env_failures(self) -> int:
        return self.env_errors + self.env_timeouts + self.env_deaths

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(*map(operator.add, _values(self), _values(other)))

    def __sub__(self, other: "Costs") -> "Costs":
        return Costs(*map(operator.sub, _values(self), _values(other)))


# `dataclasses.astuple` copies every number deeply, and a rollout adds costs at every request of every search.
_values: Callable[[Costs], tuple[float, ...]] = operator.attrgetter(*(field.name for field in fields(Costs)))
