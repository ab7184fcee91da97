"""The figures of a rollout and of its updates, logged against epochs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TypeVar

from tsr_lightning.batching.schedule import Batch
from tsr_lightning.batching.tensors import Credit
from tsr_lightning.costs import Costs
from tsr_lightning.trajectory import Group, Origin, Trajectory

ItemT = TypeVar("ItemT")


def rollout_metrics(
    groups: Sequence[Group], kept: Sequence[Group], costs: Costs, seconds: float, skipped: int
) -> dict[str, float]:
    """Of a rollout, all ranks together.

    Args:
        groups: as rolled out.
        kept: those that the callbacks left.
        costs: of the rollout.
        seconds: of the rollout.
        skipped: draws of training instances that fell on a held-out state.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        **_outcomes("rollout/", trajectories),
        **_outcomes("rollout/sampled/", [t for t in trajectories if t.origin is Origin.SAMPLED]),
        **_outcomes("rollout/searched/", [t for t in trajectories if t.origin is Origin.SEARCHED]),
        **_outcomes("rollout/demonstrated/", [t for t in trajectories if t.origin is Origin.DEMONSTRATED]),
        "rollout/groups": len(groups),
        "rollout/groups_kept": len(kept),
        "rollout/return_std_in_group": _mean(groups, lambda group: pstdev(group.returns)),
        "rollout/held_out_skipped": skipped,
        "cost/seconds": seconds,
        "cost/tokens_per_second": costs.tokens_generated / max(seconds, 1e-9),
        "cost/seconds_generation": costs.seconds_generation,
        "cost/seconds_environment": costs.seconds_environment,
        "cost/tokens_computed": costs.tokens_computed,
        "cost/tokens_prefilled": costs.tokens_prefilled,
        "cost/tokens_padding": costs.tokens_padding,
        "cost/attention_padding_share": costs.attention_padding_share,
        "cost/prompt_tokens_saved": costs.prompt_tokens_saved,
        "cost/tokens_generated": costs.tokens_generated,
        "cost/tokens_kept": costs.tokens_kept,
        "cost/tokens_discarded": costs.tokens_discarded,
        "cost/env_steps": costs.env_steps,
        "cost/waves": costs.waves,
    }


def update_metrics(steps: Sequence[Sequence[Batch]]) -> dict[str, float]:
    """Of an epoch's updates, on this rank."""
    packs = [batch.packed for step in steps for batch in step]
    return {
        "cost/update_tokens_computed": sum(len(pack) for pack in packs),
        "cost/update_tokens_saved": sum(pack.unshared_tokens - len(pack) for pack in packs),
    }


def signal_metrics(credits: Sequence[Sequence[Credit]]) -> dict[str, float]:
    """How much of what is trained on moves the policy by its advantage: the share of the groups with at least one such
    token, and of the trained tokens, that have both a weight and an advantage other than 0.

    Args:
        credits: of the groups that the callbacks left, all ranks together.
    """
    signals = [[(credit.weights != 0) & (credit.advantages != 0) for credit in group] for group in credits]
    tokens = sum(signal.numel() for group in signals for signal in group)
    return {
        "rollout/signal_group_share": _mean(signals, lambda group: any(bool(signal.any()) for signal in group)),
        "rollout/signal_token_share": sum(int(signal.sum()) for group in signals for signal in group) / max(tokens, 1),
    }


def step_metrics(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Of an optimizer step, from the parts of `Loss`, all micro-batches and ranks together.

    The effective sample size of the importance ratios r under the loss's weights w is (sum w r)^2 / (sum w sum w r^2):
    1 where all ratios are equal, and near 0 where a few tokens dominate (Kish, Survey Sampling, 1965).
    """
    figures = {**sums, **maxima}
    squared = figures.pop("ratio_squared", 0.0) * figures["policy_weight"]
    if squared > 0:
        figures["effective_sample_size"] = min(1.0, figures["ratio"] ** 2 / squared)  # rounding may exceed 1
    return {f"train/{name}": value for name, value in figures.items()}


def truncated_without_value(groups: Sequence[Group]) -> int:
    """How many truncated trajectories end in a context longer than the model sees, so that 0 stands for its value."""
    return sum(t.truncated and not t.final_prompt for group in groups for t in group.trajectories)


def _outcomes(prefix: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if not turns:
        return {}
    return {
        f"{prefix}success_rate": _mean(trajectories, lambda t: t.succeeded),
        f"{prefix}return": _mean(trajectories, lambda t: t.episode_return),
        f"{prefix}turns": _mean(trajectories, lambda t: len(t.turns)),
        f"{prefix}valid": _mean(turns, lambda turn: turn.valid),
        f"{prefix}effective": _mean(turns, lambda turn: turn.effective),
        f"{prefix}finished": _mean(turns, lambda turn: turn.finished),
        f"{prefix}response_tokens": _mean(turns, lambda turn: len(turn.response)),
    }


def _mean(items: Iterable[ItemT], figure: Callable[[ItemT], float]) -> float:
    return fmean(figure(item) for item in items)
