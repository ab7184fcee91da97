"""Costs of rollouts."""

from dataclasses import astuple, dataclass


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

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Costs") -> "Costs":
        return Costs(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))
