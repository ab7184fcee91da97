"""What search costs, counted where it is spent."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counters of a rollout; two ledgers add up. Tokens unless said."""

    tokens_computed: int = 0  # through the model, padding apart
    tokens_padding: int = 0
    prompt_tokens_saved: int = 0  # asked for in a prompt and not computed again
    tokens_generated: int = 0
    tokens_kept: int = 0  # generated, and part of a trajectory
    env_steps: int = 0
    waves: int = 0
    seconds_generation: float = 0.0
    seconds_environment: float = 0.0

    @property
    def tokens_discarded(self) -> int:
        return self.tokens_generated - self.tokens_kept

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Ledger") -> "Ledger":
        return Ledger(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))
