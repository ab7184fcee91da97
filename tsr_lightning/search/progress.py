"""The one event of progress: how far the searches of a rollout or of an evaluation are."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tsr_lightning.costs import Costs


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the searches of a phase are, on this rank. The driver makes one per wave, from the one it began with."""

    phase: str = ""  # "rollout", or the name of an evaluation protocol
    began: float = field(default_factory=time.perf_counter)  # tells the rollouts and evaluations of a process apart
    done: int = 0  # searches that have ended
    total: int = 0
    costs: Costs = field(default_factory=Costs)  # of the phase so far
    seconds: float = 0.0  # since it began
    spent: float = 0.0  # share of all searches' budgets, ended ones counted whole: what is left takes at most as long
    overlapped_seconds: float = 0.0  # of `seconds`, those in which the updates did not wait

    def after(self, done: int, total: int, costs: Costs, spent: float) -> "Progress":
        """The progress that `done` of `total` further searches make.

        Args:
            done: further searches that have ended.
            total: further searches.
            costs: of these.
            spent: share of their budgets.
        """
        return Progress(
            self.phase,
            self.began,
            self.done + done,
            self.total + total,
            self.costs + costs,
            time.perf_counter() - self.began,
            (self.done + spent * total) / (self.done + total),
        )


Report = Callable[[Progress], None]


def unreported(progress: Progress) -> None:
    """Takes the progress of searches that nobody watches."""
