"""The parts of a configuration that an estimate depends on, as plain values."""

from dataclasses import dataclass

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.estimate.units import Units, units_of
from tsr_lightning.estimate.workload import (
    Episode,
    KeptGroups,
    RolloutTokens,
    TrainedTokens,
    rollout_tokens,
    trained_tokens,
)
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.search.plan import Plan, PlanEntry
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class Evaluation:
    """A protocol of evaluation, and how often a run evaluates it."""

    strategy: Strategy
    samples: int
    times: int


@dataclass(frozen=True)
class Case:
    """Assumptions about episodes.

    Args:
        name: of the case.
        episode: its turns and tokens.
        longest: response tokens of the longest of those that are generated together, which decides the steps.
    """

    name: str
    episode: Episode
    longest: int


@dataclass(frozen=True)
class Setup:
    """A configuration with the shape of its model and the length of its episodes."""

    shape: ModelShape
    spec: PolicySpec
    autocast: bool  # trainer.precision is bf16-mixed
    has_critic: bool
    keeps_reference: bool  # whether log-probabilities of the reference are computed
    estimates: int  # forward passes over what is trained on, before its updates
    scores_demonstrations: bool  # whether these take demonstrations too
    scores_baselines: bool  # whether these take greedy baselines too
    trains_trees: bool
    trains_observations: bool
    plan: Plan
    epochs: int
    instances: int
    kept: KeptGroups
    evaluations: tuple[Evaluation, ...]
    held_out: int
    worst: Case
    expected: Case
    updates: Updates
    engine: Transformers
    concurrency: int
    max_response_tokens: int
    context_tokens: int  # most of a prompt and its response
    is_sharded: bool  # trainer.strategy is fsdp2
    is_deterministic: bool  # trainer.deterministic

    @property
    def units(self) -> Units:
        """The parameter groups that FSDP2 shards."""
        return units_of(self.shape, self.spec, has_critic=self.has_critic, keeps_reference=self.keeps_reference)

    @property
    def cases(self) -> tuple[Case, Case]:
        return self.expected, self.worst

    def rollout(self, entries: list[PlanEntry], case: Case) -> RolloutTokens:
        """Counts an epoch's rollout with these entries."""
        return rollout_tokens(entries, self.instances, case.episode)

    def evaluation(self, evaluation: Evaluation, case: Case) -> RolloutTokens:
        """Counts one evaluation by a protocol, on all held-out instances."""
        return rollout_tokens([PlanEntry(evaluation.strategy, evaluation.samples)], self.held_out, case.episode)

    def trained(self, entries: list[PlanEntry], case: Case) -> TrainedTokens:
        """Counts one pass over an epoch's training sequences."""
        kept, groups, observes = _without_baselines(entries), self.kept(self.instances), self.trains_observations
        return trained_tokens(kept, groups, case.episode, trains_trees=self.trains_trees, observes=observes)

    def estimated(self, entries: list[PlanEntry], case: Case) -> TrainedTokens:
        """Counts one pass before the updates, which takes sampled tokens alone."""
        scored, groups = self.scored(entries), self.kept(self.instances)
        return trained_tokens(scored, groups, case.episode, trains_trees=self.trains_trees)

    def scored(self, entries: list[PlanEntry]) -> list[PlanEntry]:
        """Those of an epoch's entries that passes before the updates take."""
        return [
            entry
            for entry in (entries if self.scores_baselines else _without_baselines(entries))
            if self.scores_demonstrations or entry.strategy.traits.origin is not Origin.DEMONSTRATED
        ]

    @property
    def distinct_entries(self) -> list[tuple[list[PlanEntry], int]]:
        """The plan's entries, each with the number of epochs that have them."""
        found: list[tuple[list[PlanEntry], int]] = []
        last = min(self.plan.constant_from, self.epochs - 1)  # the epochs after it are alike
        for epoch in range(last + 1):
            entries = self.plan.entries(epoch) + self.plan.fallback(epoch)  # as if all samples of every group failed
            count = self.epochs - last if epoch == last else 1
            if found and found[-1][0] == entries:
                found[-1] = entries, found[-1][1] + count
            else:
                found.append((entries, count))
        return found


def _without_baselines(entries: list[PlanEntry]) -> list[PlanEntry]:
    """The entries without greedy baselines, which are not trained on."""
    return [entry for entry in entries if entry.strategy.traits.origin is not Origin.GREEDY]
