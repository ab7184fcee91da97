"""What a run of training cost so far."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tsr_lightning.costs import Costs
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.search.progress import Progress


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Costs of a run of training, all ranks together."""

    epochs: int = 0
    updates: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0  # of these
    tokens_generated: int = 0  # in rollouts; an evaluation's own are among its figures
    env_steps: int = 0
    env_failures: int = 0  # calls of the environment that raised, hung or died, in rollouts
    trajectories_lost: int = 0  # to these


def with_failures(costs: RunCosts, metrics: Mapping[str, float]) -> RunCosts:
    """The costs with the failures that the figures of a rollout, which are of all ranks, count."""
    failures = sum(int(metrics.get(f"cost/env_{kind}", 0)) for kind in ("errors", "timeouts", "deaths"))
    lost = int(metrics.get("cost/trajectories_lost", 0))
    return replace(costs, env_failures=costs.env_failures + failures, trajectories_lost=costs.trajectories_lost + lost)


class RolloutCostMeter:
    """Sums the costs of the rollouts that are trained on, of this rank; each reports its own costs so far."""

    def __init__(self) -> None:
        self._ended = Costs()
        self._running = Costs()
        self._began: float | None = None  # the running rollout

    def update(self, progress: Progress) -> None:
        if progress.phase != TRAINING_ROLLOUT:
            return
        if progress.began != self._began:
            self._ended += self._running
            self._began = progress.began
        self._running = progress.costs

    @property
    def total(self) -> Costs:
        return self._ended + self._running
