"""Collects what an epoch trains on, in two steps: its rollout, and the credit of its trajectories.

Plain functions, which know no Trainer and no data module. Under several ranks each runs its share of the groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from tsr_lightning.batching.sequences import TrainingSequence, training_sequences, with_credit
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.costs import Costs
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import has_signal
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, ProgressFn, SearchTask
from tsr_lightning.search.plan import Plan, PlanEntry
from tsr_lightning.training.distributed import Ranks
from tsr_lightning.trajectory import Group, Origin, Trajectory

# The policy's, critic's and reference's estimates of trajectories, each given with its training sequences
EstimateFn = Callable[[Sequence[tuple[Trajectory, Sequence[TrainingSequence]]]], list[Estimates]]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The groups of an epoch and what they cost, of all ranks."""

    groups: list[Group]  # in the order of their instances
    costs: Costs
    skipped: int = 0  # draws of training instances that fell on a held-out state
    rounds: int = 1  # in which the instances were drawn

    def __add__(self, other: "Rollout") -> "Rollout":
        return Rollout(
            self.groups + other.groups,
            self.costs + other.costs,
            self.skipped + other.skipped,
            self.rounds + other.rounds,
        )


@dataclass(frozen=True)
class DynamicSampling:
    """Draws instances until enough groups have signal: DAPO, section 3.2 of https://arxiv.org/abs/2503.14476.

    An epoch draws rounds of `data.instances` instances until `groups` groups have signal (`objectives/signal.py`) or
    the budget is spent; then it trains on the first `groups` of them, or on what it has. Callbacks get all groups that
    were drawn, so their figures are of the policy and not of the choice; what they drop is not trained on.

    Args:
        groups: with signal, that an epoch wants.
        max_tokens: sampled tokens per epoch, those of search included, after which no further round begins. A round
            that has begun is finished.
    """

    groups: int = 16
    max_tokens: int = 100_000

    def __post_init__(self) -> None:
        require(self.groups >= 1, "DynamicSampling.groups", self.groups, "give 1 or more, e.g. data.instances")
        remedy = "give the sampled tokens that an epoch may cost, e.g. four times those of one round"
        require(self.max_tokens >= 1, "DynamicSampling.max_tokens", self.max_tokens, remedy)

    def check(self, plan: Plan) -> None:
        """Refuses a plan under which the wanted groups can never be had."""
        for epoch in range(plan.constant_from + 1):
            sampled = [e.count for e in plan.entries(epoch) if e.strategy.origin is not Origin.DEMONSTRATED]
            require(
                sum(sampled) >= 1,
                "data.dynamic_sampling",
                self,
                f"in epoch {epoch} data.plan samples nothing, so max_tokens would never be spent; use null",
            )
            remedy = (
                f"in groups of {sum(sampled)} samples of a token or more, they cost more than max_tokens, which is "
                f"{self.max_tokens}; want fewer groups, or allow more tokens"
            )
            require(self.groups * sum(sampled) <= self.max_tokens, "data.dynamic_sampling.groups", self.groups, remedy)

    def select(self, groups: Sequence[Group], objective: Objective) -> list[Group]:
        """The first of those with signal, as many as wanted."""
        return [group for group in groups if has_signal(group, objective)][: self.groups]


def sample_dynamically(draw: Callable[[int], Rollout], sampling: DynamicSampling, objective: Objective) -> Rollout:
    """All rounds of an epoch. Every rank decides alike, since the groups and costs of a round are those of all ranks.

    Args:
        draw: rolls out the round of a number.
        sampling: when to stop.
        objective: says which groups have signal.
    """
    rollout = draw(0)
    while len(sampling.select(rollout.groups, objective)) < sampling.groups:
        if rollout.costs.tokens_generated >= sampling.max_tokens:
            break
        rollout += draw(rollout.rounds)
    return rollout


def epoch_tasks(
    seeds: Sequence[int], entries: Sequence[PlanEntry], key: Key, epoch: int, first: int = 0
) -> list[list[SearchTask]]:
    """The searches of an epoch, one list per group.

    Args:
        seeds: of the instances.
        entries: the plan's, for this epoch.
        key: the run's.
        epoch: names the draws.
        first: place of the first instance in the epoch.
    """
    strategies = [entry.strategy for entry in entries for _ in range(entry.count)]
    return [
        [
            SearchTask(seed, member, strategy, key.fold_in("epoch", epoch, "instance", place, "member", member))
            for member, strategy in enumerate(strategies)
        ]
        for place, seed in enumerate(seeds, start=first)
    ]


def roll_out(driver: Driver, tasks: Sequence[Sequence[SearchTask]], progress: ProgressFn, ranks: Ranks) -> Rollout:
    """Runs this rank's groups, and gathers those of all ranks."""
    before = driver.costs
    groups = ranks.gather(run_groups(driver, ranks.shard(tasks), progress))
    return Rollout(groups, sum(ranks.gather([driver.costs - before]), Costs()))


def run_groups(driver: Driver, tasks: Sequence[Sequence[SearchTask]], progress: ProgressFn) -> list[Group]:
    """One group per list of tasks, which are all of one instance."""
    trajectories = iter(driver.run(list(chain.from_iterable(tasks)), progress))
    return [Group(members[0].instance, tuple(islice(trajectories, len(members)))) for members in tasks]


def credited_sequences(
    groups: Sequence[Group], objective: Objective, estimate: EstimateFn, ranks: Ranks
) -> list[TrainingSequence]:
    """The training sequences of groups, with credit; every rank estimates its share and returns all of them."""
    if not groups:
        return []
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    sequences = [training_sequences(trajectory) for trajectory in trajectories]
    estimates = ranks.gather(estimate(ranks.shard(list(zip(trajectories, sequences, strict=True)))))
    remaining = iter(estimates)
    by_group = [list(islice(remaining, len(group.trajectories))) for group in groups]
    credits = chain.from_iterable(objective.credit(groups, by_group))
    return [
        sequence
        for parts, estimated, credit in zip(sequences, estimates, credits, strict=True)
        for sequence in with_credit(parts, estimated, credit)
    ]
