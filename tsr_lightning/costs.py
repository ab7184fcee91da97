"""What search costs, counted where it is spent."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Counters of a rollout; two ledgers add up. Tokens unless said."""

    tokens_computed: int = 0  # through the model, padding apart
    tokens_prefilled: int = 0  # of these, in prompts
    tokens_padding: int = 0
    prompt_tokens_asked: int = 0  # of all prompts, once for every response
    tokens_generated: int = 0
    tokens_kept: int = 0  # generated, and part of a trajectory
    scores_computed: int = 0  # products of a query and a key in each head, padding included
    scores_needed: int = 0
    env_steps: int = 0
    waves: int = 0
    seconds_generation: float = 0.0
    seconds_environment: float = 0.0  # that generation did not hide

    @property
    def tokens_discarded(self) -> int:
        return self.tokens_generated - self.tokens_kept

    @property
    def prompt_tokens_saved(self) -> int:
        """Asked for in a prompt and not computed again."""
        return self.prompt_tokens_asked - self.tokens_prefilled

    @property
    def attention_padding_share(self) -> float:
        return 1 - self.scores_needed / self.scores_computed if self.scores_computed else 0.0

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Costs") -> "Costs":
        return Costs(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))
