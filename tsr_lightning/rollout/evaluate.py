"""Evaluates a policy on held-out instances, by a protocol."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tsr_lightning.costs import Costs
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.groups import run_groups
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.progress import Progress, Report, unreported
from tsr_lightning.trajectory import Group


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The episodes of some held-out instances, one group per instance."""

    protocol: EvalProtocol
    groups: tuple[Group, ...]
    costs: Costs
    seconds: float

    @property
    def success_rate(self) -> float:
        """The share of the episodes that succeeded; nan without episodes."""
        episodes = [trajectory for group in self.groups for trajectory in group.trajectories]
        return sum(episode.succeeded for episode in episodes) / len(episodes) if episodes else float("nan")


def evaluate(
    actor: Actor,
    instances: Sequence[Instance],
    protocol: EvalProtocol,
    *,
    seed: int,
    places: Sequence[int] | None = None,
    max_lost: int | None = None,
    report: Report = unreported,
) -> EvalResult:
    """Plays held-out instances with the actor's policy as it is now, and returns the episodes.

    Args:
        actor: plays them.
        instances: held out, such as `Instances.held_out`.
        protocol: temperature, episodes per instance and search.
        seed: names the draws: that of the held-out set, so that every policy is evaluated with the same.
        places: of the instances in the held-out set, which name their draws too; None where they are the whole set.
        max_lost: episodes that failures of the environment may cost, past which the rest is given up; None for all.
            Lost episodes are left out.
        report: called after every wave.
    """
    started = time.perf_counter()
    actor.sync()
    driver = actor.driver(protocol.temperature)
    numbered = list(zip(range(len(instances)) if places is None else places, instances, strict=True))
    begun = Progress(protocol.name)
    groups = run_groups(driver, protocol.tasks(numbered, seed), report, begun, max_lost)
    seconds = time.perf_counter() - started
    return EvalResult(protocol, tuple(group for group in groups if group.trajectories), driver.costs, seconds)
