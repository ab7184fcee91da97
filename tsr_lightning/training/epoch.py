"""From the rollout of an epoch to its updates: selection, credit, micro-batches. Logs the figures of each."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import Following
from tsr_lightning.objectives.base import Objective
from tsr_lightning.rng import Key
from tsr_lightning.rollout.collect import Collected, RolloutSpec
from tsr_lightning.rollout.faults import describe_failures, drop_single_members
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.hooks import OnCredit, OnRollout, OnRolloutEnd, OnRolloutMetrics
from tsr_lightning.training.metrics import (
    rollout_metrics,
    signal_metrics,
    tree_metrics,
    truncated_without_value,
    update_metrics,
    update_tokens,
)
from tsr_lightning.training.mismatch import (
    check_mismatch,
    describe_reuse,
    reuse_obstacle,
    tolerance_of,
    within_rounding,
)
from tsr_lightning.trajectory import Comparison, Group

Comparisons = list[list[Group | Comparison]]  # of each group that is trained on, `Objective.comparisons`


def select(trainer: Trainer, agent: Agent, collected: Collected, spec: RolloutSpec, epoch: int) -> Comparisons:
    """The comparisons of the groups that the callbacks and dynamic sampling leave of a rollout; logs its figures.

    Args:
        trainer: whose callbacks filter groups.
        agent: gives the objective.
        collected: the rollout.
        spec: what was rolled out.
        epoch: of the rollout.
    """
    objective, rollout, sampling = agent.objective.at(epoch), collected.rollout, spec.sampling(epoch)
    groups = rollout.groups
    for callback in compat.callbacks(trainer):
        if isinstance(callback, OnRollout):
            callback.on_rollout(trainer, agent, groups)
    for callback in compat.callbacks(trainer):
        if isinstance(callback, OnRolloutEnd):
            groups = callback.on_rollout_end(trainer, agent, groups)
    figures: dict[str, float] = {}
    if sampling is not None:
        figures = sampling.figures(rollout)
        groups = sampling.select(groups, objective)
        _say(epoch, sampling.shortfall(rollout))
    _say(epoch, describe_failures(rollout.costs))
    groups = drop_single_members(groups, objective, spec.plan.group_size(epoch))
    comparisons = [objective.comparisons(group) for group in groups]
    figures |= rollout_metrics(rollout.groups, groups, rollout.costs, collected.seconds, rollout.skipped)
    if collected.policy_epochs is not None:
        figures["rollout/staleness"] = epoch - collected.policy_epochs
    figures |= _objective_figures(objective, groups, comparisons, epoch)
    peak = max(ProcessGroup.of(trainer).gather([collected.peak_mib]))
    of_process = {"cost/rollout_peak_mib": peak, "cost/seconds_waiting": collected.waited}
    compat.log_figures(trainer, figures | of_process, epoch)
    for callback in compat.callbacks(trainer):
        if isinstance(callback, OnRolloutMetrics):
            trained = epoch if collected.policy_epochs is None else collected.policy_epochs
            callback.on_rollout_metrics(trainer, figures, trained)
    return comparisons


def _objective_figures(
    objective: Objective, groups: Sequence[Group], comparisons: Comparisons, epoch: int
) -> dict[str, float]:
    """Metrics of what an objective needs beyond the trajectories: their trees, and values after the last turn."""
    figures = tree_metrics(groups, comparisons, objective) if objective.needs.tree else {}
    if objective.needs.final_values:
        missing = figures["rollout/truncated_without_value"] = truncated_without_value(groups)
        if missing:
            sentence = "truncated trajectories end in a context longer than the model sees, so bootstrap_truncated"
            _say(epoch, f"{missing} {sentence} takes 0 for its value")
    return figures


def updates_of(
    trainer: Trainer,
    agent: Agent,
    rolled_out: Comparisons,
    demonstrated: Comparisons,
    updates: Updates,
    key: Key,
    *,
    epoch: int,
    drawn: int,
    staleness: int,
    replays: bool,
    at_least: int,
    following: Following,
) -> list[list[Batch]]:
    """This rank's micro-batches of each optimizer step of an epoch; no step where there is nothing to learn.

    Args:
        trainer: of the fit.
        agent: estimates the trajectories, and gives the objective.
        rolled_out: the comparisons of the rollout's groups.
        demonstrated: those of demonstrations.
        updates: the settings.
        key: of the epoch.
        epoch: that is trained.
        drawn: groups of its rollout, for the log.
        staleness: epochs that the policy of a rollout may lag behind.
        replays: whether rollouts are those of an earlier run.
        at_least: micro-batches of a step.
        following: gives the ids that follow a response.

    Raises:
        RunError: engine and trainer give the responses log-probabilities that differ by too much.
    """
    ranks, objective, precision = ProcessGroup.of(trainer), agent.objective.at(epoch), str(trainer.precision)
    obstacle = reuse_obstacle(objective.needs, updates, agent.spec, precision, staleness)
    if updates.reuse_logprobs == "auto" and obstacle:
        updates = replace(updates, reuse_logprobs=False)
        _say(epoch, "" if epoch else f"old log-probabilities are computed before the updates, since {obstacle}")
    estimate = partial(agent.estimates, micro_batch_tokens=updates.tokens_at_once)
    comparisons = rolled_out + demonstrated
    sequences, credits, mismatch, pieces = credited_sequences(
        comparisons, objective, estimate, ranks, updates, key, following
    )
    for callback in compat.callbacks(trainer):
        if isinstance(callback, OnCredit):
            callback.on_credit(trainer, pieces)
    if rolled_out:
        compat.log_figures(trainer, signal_metrics(credits[: len(rolled_out)]) | mismatch, epoch)
    others = staleness > 0 or replays
    tolerance = tolerance_of(updates, agent.spec, precision, agent.temperature, of_others=others)
    if updates.reuse_logprobs == "auto" and (epoch == 0 or not within_rounding(mismatch)):
        _say(epoch, describe_reuse(mismatch))
    check_mismatch(mismatch, tolerance, is_updated=trainer.global_step > 0)
    none = f"no update, because none of the {drawn} groups"
    if not sequences:
        _say(epoch, f"{none} was left to train on")
        return []
    steps = schedule(sequences, updates, key, rank=ranks.rank, ranks=ranks.world_size, at_least=at_least)
    compat.log_figures(trainer, update_metrics(len(steps), ranks.gather([update_tokens(steps)])), epoch)
    if not steps:
        _say(epoch, f"{none} has signal: nothing is imitated, and all compared returns are equal")
    return steps


def _say(epoch: int, sentence: str) -> None:
    if sentence:
        rank_zero_info(f"epoch {epoch}: {sentence}")
