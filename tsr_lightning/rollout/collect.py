"""Collects the rollout of an epoch: draws instances, searches them, and draws more until enough groups have signal."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tsr_lightning.costs import Costs
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import has_signal
from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.faults import Faults
from tsr_lightning.rollout.groups import Ranks, Rollout, epoch_tasks, roll_out
from tsr_lightning.rollout.instances import Instances
from tsr_lightning.rollout.memory import PeakMemory
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.progress import Report
from tsr_lightning.trajectory import Group


@dataclass(frozen=True)
class DynamicSampling:
    """Draws instances until enough groups have signal: DAPO, section 3.2 of https://arxiv.org/abs/2503.14476.

    An epoch draws rounds of `data.instances` instances until `groups` groups have signal (`objectives/signal.py`) or
    the budget is spent; then it trains on the first `groups` of them, or on what it has. Callbacks get all groups that
    were drawn, so their figures are of the policy and not of the choice; what they drop is not trained on.

    Args:
        groups: with signal, that an epoch wants.
        max_sampled_tokens: of an epoch, those of search included, after which no further round begins. A round that has
            begun is finished.
    """

    groups: int = 16
    max_sampled_tokens: int = 100_000

    def __post_init__(self) -> None:
        require(self.groups >= 1, "DynamicSampling.groups", self.groups, "give 1 or more, e.g. data.instances")
        remedy = "give the sampled tokens that an epoch may cost, e.g. four times those of one round"
        require(self.max_sampled_tokens >= 1, "DynamicSampling.max_sampled_tokens", self.max_sampled_tokens, remedy)

    def check(self, plan: Plan) -> None:
        """Refuses a plan under which the wanted groups can never be had."""
        sizes = [sampled_size(plan, epoch) for epoch in range(plan.constant_from + 1)]
        remedy = "data.plan samples nothing, so no group can have signal by its returns; use null"
        require(any(sizes), "data.dynamic_sampling", self, remedy)
        remedy = (
            f"in groups of {max(sizes)} samples of a token or more, they cost more than max_sampled_tokens, which is "
            f"{self.max_sampled_tokens}; want fewer groups, or allow more tokens"
        )
        least = self.groups * max(sizes)
        require(least <= self.max_sampled_tokens, "data.dynamic_sampling.groups", self.groups, remedy)

    def figures(self, rollout: Rollout) -> dict[str, float]:
        """Metrics: rounds drawn, groups with signal."""
        return {"rollout/rounds": rollout.rounds, "rollout/groups_with_signal": rollout.with_signal}

    def shortfall(self, rollout: Rollout) -> str:
        """A sentence for the log if the token budget ran out; otherwise empty."""
        if rollout.with_signal >= self.groups:
            return ""
        return (
            f"data.dynamic_sampling.max_sampled_tokens is spent: {rollout.costs.tokens_generated:,} tokens in "
            f"{rollout.rounds} rounds gave {rollout.with_signal} of the {self.groups} groups with signal"
        )

    def select(self, groups: Sequence[Group], objective: Objective) -> list[Group]:
        """The first of those with signal, as many as wanted."""
        return [group for group in groups if has_signal(group, objective)][: self.groups]


def sampled_size(plan: Plan, epoch: int) -> int:
    """How many members of a group the policy samples in an epoch; where it is 0, there is nothing to draw again."""
    return sum(e.count for e in plan.entries(epoch) if e.strategy.traits.origin.is_sampled)


def sample_dynamically(draw: Callable[[int], Rollout], sampling: DynamicSampling, objective: Objective) -> Rollout:
    """All rounds of an epoch. Every rank decides alike, since the groups and costs of a round are those of all ranks.

    Args:
        draw: rolls out the round of a number.
        sampling: when to stop.
        objective: says which groups have signal.
    """

    def counted(rollout: Rollout) -> Rollout:
        return replace(rollout, with_signal=sum(has_signal(group, objective) for group in rollout.groups))

    rollout = counted(draw(0))
    while rollout.with_signal < sampling.groups:
        if rollout.costs.tokens_generated >= sampling.max_sampled_tokens:
            break
        rollout += counted(draw(rollout.rounds))
    return rollout


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
    policy_epochs: int | None  # that the policy which sampled it had been trained for; None: it was another run's
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
    record: bool = False,
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
        record: keep every turn of every search, in `Trajectory.record`.
    """
    sampling, started = spec.sampling(epoch), time.perf_counter()
    learners = spec.plan.learners
    for learner in learners:
        learner.begin(epoch)
    with PeakMemory(actor.device) as memory:
        actor.sync()
        driver = actor.driver(
            policy_epochs=policy_epochs,
            keep_tree=objective.needs.tree,
            keep_state_keys=objective.needs.state_keys,
            record=record,
        )
        draw = partial(_round, actor, driver, spec, epoch, ranks, report)
        rollout = draw(0) if sampling is None else sample_dynamically(draw, sampling, objective)
        spec.instances.observe(epoch, rollout.groups, policy_epochs)
        for learner in learners:
            learner.learn(epoch, rollout.groups, policy_epochs)
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
