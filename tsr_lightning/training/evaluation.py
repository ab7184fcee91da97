"""What is evaluated and what comes back: plain data between the data module, the agent and whoever measures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tsr_lightning.costs import Costs
from tsr_lightning.search.driver import Driver, ProgressFn, SearchTask
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.trajectory import Group, Trajectory


@dataclass(frozen=True)
class EvalProtocol:
    """One protocol of evaluation on the held-out instances; its figures mean nothing without it.

    Args:
        name: names its figures, as in `val/sampled/success_rate`.
        temperature: softmax temperature of the policy; 0 is greedy.
        samples: episodes per instance (1 is enough where nothing is drawn).
        search: a strategy to play under; null plays as the trained policy does, without search.
    """

    name: str = "sampled"
    temperature: float = 1.0
    samples: int = 1
    search: Strategy | None = None


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One validation batch: the episodes of some held-out instances, one group per instance."""

    protocol: EvalProtocol
    groups: tuple[Group, ...]
    costs: Costs
    seconds: float


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """One validation batch, not yet played."""

    protocol: EvalProtocol
    tasks: tuple[SearchTask, ...]  # the members of one instance after the other
    driver: Driver
    begin: Callable[[], ProgressFn]  # a rollout of its own for whoever watches
    end: Callable[[Sequence[Trajectory]], None]  # told what was played

    def played(self) -> EvalResult:
        """Plays it with the policy as it is now."""
        started = time.perf_counter()
        before = self.driver.costs
        trajectories = self.driver.run(self.tasks, self.begin())
        costs = self.driver.costs - before
        self.end(trajectories)
        return EvalResult(self.protocol, tuple(grouped(trajectories)), costs, time.perf_counter() - started)


def grouped(trajectories: Sequence[Trajectory]) -> list[Group]:
    """One group per instance, in the order of their first members."""
    members: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        members.setdefault(trajectory.instance, []).append(trajectory)
    return [Group(instance, tuple(group)) for instance, group in members.items()]
