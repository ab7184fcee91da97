"""What a run cost so far; of its rollouts, what the progress that they report says."""

from dataclasses import dataclass

from tsr_lightning.costs import Costs
from tsr_lightning.training.hooks import RolloutProgress

ROLLOUT = "rollout"  # `RolloutProgress.what` of a rollout for training; a protocol gives its own name


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run of training cost, on all ranks together."""

    epochs: int = 0
    updates: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0  # of these
    tokens_generated: int = 0  # by rollouts; an evaluation's own are among its figures
    env_steps: int = 0


class RolloutCosts:
    """Adds up the rollouts of training, each of which reports its own costs so far; on this rank."""

    def __init__(self) -> None:
        self._ended = Costs()
        self._running = Costs()
        self._number: int | None = None  # of the rollout under way

    def see(self, progress: RolloutProgress) -> None:
        if progress.what != ROLLOUT:
            return
        if progress.number != self._number:
            self._ended += self._running
            self._number = progress.number
        self._running = progress.costs

    @property
    def total(self) -> Costs:
        return self._ended + self._running
