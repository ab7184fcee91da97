"""What a run of training cost so far."""

from dataclasses import dataclass

from tsr_lightning.costs import Costs
from tsr_lightning.training.hooks import TRAINING_ROLLOUT, RolloutProgress


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Of a run of training, all ranks together."""

    epochs: int = 0
    updates: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0  # of these
    tokens_generated: int = 0  # in rollouts; an evaluation's own are among its figures
    env_steps: int = 0


class RolloutCostMeter:
    """Sums the costs of the rollouts that are trained on, of this rank; each reports its own costs so far."""

    def __init__(self) -> None:
        self._ended = Costs()
        self._running = Costs()
        self._number: int | None = None  # of the running rollout

    def update(self, progress: RolloutProgress) -> None:
        if progress.phase != TRAINING_ROLLOUT:
            return
        if progress.number != self._number:
            self._ended += self._running
            self._number = progress.number
        self._running = progress.costs

    @property
    def total(self) -> Costs:
        return self._ended + self._running
