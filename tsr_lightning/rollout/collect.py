"""Collects the rollout of an epoch: draws instances, searches them, and draws more until enough groups have signal."""

import time
from dataclasses import dataclass, field, replace
from functools import partial

from tsr_lightning.costs import Costs
from tsr_lightning.objectives.base import Objective
from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.dynamic_sampling import DynamicSampling, sample_dynamically, sampled_size
from tsr_lightning.rollout.faults import Faults
from tsr_lightning.rollout.groups import Rollout, epoch_tasks, roll_out
from tsr_lightning.rollout.instances import Instances
from tsr_lightning.rollout.peak_memory import PeakMemory
from tsr_lightning.rollout.ranks import Ranks
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.progress import Report


@dataclass(frozen=True)
class RolloutSpec:
    """What is rolled out in every epoch of a run.

    Args:
        plan: which strategies roll out the trajectories of an instance.
        instances: draws the training instances.
        count: instances of an epoch, or of a round of dynamic sampling.
        key: the run's.
        dynamic_sampling: draws further rounds; None draws one.
        faults: how many trajectories may be lost.
    """

    plan: Plan
    instances: Instances
    count: int
    key: Key
    dynamic_sampling: DynamicSampling | None = None
    faults: Faults = field(default_factory=Faults)

    def sampling(self, epoch: int) -> DynamicSampling | None:
        """The dynamic sampling of an epoch; None where the plan samples nothing that could be drawn again."""
        return self.dynamic_sampling if sampled_size(self.plan, epoch) else None


@dataclass(frozen=True, slots=True)
class Collected:
    """A rollout, and what collecting it took."""

    rollout: Rollout
    policy_epochs: int  # that the policy which sampled it had been trained for
    seconds: float
    peak_mib: float
    waited: float  # seconds that the updates waited for it


def collect(
    actor: Actor,
    spec: RolloutSpec,
    epoch: int,
    objective: Objective,
    ranks: Ranks,
    report: Report,
    policy_epochs: int,
) -> Collected:
    """Rolls out an epoch with the actor's policy as it is now.

    Args:
        actor: plays it.
        spec: what is rolled out.
        epoch: names the draws.
        objective: of the epoch; it says what trajectories record, and which groups have signal.
        ranks: that share the instances out.
        report: called after every wave.
        policy_epochs: that the policy has been trained for.
    """
    sampling, started = spec.sampling(epoch), time.perf_counter()
    with PeakMemory(actor.device) as memory:
        actor.sync()
        driver = actor.driver(
            policy_epochs=policy_epochs, keep_tree=objective.needs.tree, keep_state_keys=objective.needs.state_keys
        )
        draw = partial(_round, actor, driver, spec, epoch, ranks, report)
        rollout = draw(0) if sampling is None else sample_dynamically(draw, sampling, objective)
    seconds = time.perf_counter() - started
    return Collected(rollout, policy_epochs, seconds, memory.highest_mib, waited=seconds)


def _round(
    actor: Actor, driver: Driver, spec: RolloutSpec, epoch: int, ranks: Ranks, report: Report, number: int
) -> Rollout:
    """The rollout of one round of an epoch's instances, of all ranks."""
    first, size = number * spec.count, spec.plan.group_size(epoch)
    [instances, *_] = ranks.gather([spec.instances.training(epoch, spec.count, first=first)])  # rank 0's
    tasks = epoch_tasks(instances.instances, spec.plan.entries(epoch), spec.key, epoch, first)
    fallback = epoch_tasks(instances.instances, spec.plan.fallback(epoch), spec.key, epoch, first, first_member=size)
    without_root = instances.instances.count(None) * size
    max_lost = spec.faults.max_lost
    rollout = roll_out(driver, tasks, report, ranks, max_lost, fallback if any(fallback) else ())
    costs, wanted = rollout.costs + Costs(trajectories_lost=without_root), rollout.searches + without_root
    spec.faults.check(costs.trajectories_lost, wanted, f"epoch {epoch}", actor.retry.last)
    return replace(rollout, costs=costs, skipped=instances.skipped)
