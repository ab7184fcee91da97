"""The figures of a rollout and of its updates, logged against epochs."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean, pstdev

from tsr_lightning.batching.schedule import Batch
from tsr_lightning.costs import Costs
from tsr_lightning.trajectory import Group, Origin, Trajectory


def rollout_metrics(
    groups: Sequence[Group], kept: Sequence[Group], costs: Costs, seconds: float, skipped: int
) -> dict[str, float]:
    """Of a rollout, all ranks together.

    Args:
        groups: as rolled out.
        kept: those that the callbacks left.
        costs: of the rollout, as are the seconds.
        seconds: of the wall clock.
        skipped: draws of training instances that fell on a held-out state.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    outcomes = _outcomes("rollout/", trajectories)
    for origin in Origin:
        outcomes |= _outcomes(f"rollout/{origin.value}/", [t for t in trajectories if t.origin is origin])
    return {
        **outcomes,
        "rollout/groups": len(groups),
        "rollout/groups_kept": len(kept),
        "rollout/return_std_in_group": fmean(pstdev(group.returns) for group in groups),
        "rollout/held_out_skipped": skipped,
        "cost/seconds": seconds,
        "cost/tokens_per_second": costs.tokens_generated / max(seconds, 1e-9),
        "cost/attention_padding_share": costs.attention_padding_share,
        "cost/prompt_tokens_saved": costs.prompt_tokens_saved,
        "cost/tokens_discarded": costs.tokens_discarded,
        **{f"cost/{name}": count for name, count in asdict(costs).items()},
    }


def update_metrics(steps: Sequence[Sequence[Batch]]) -> dict[str, float]:
    """Of an epoch's updates, on this rank."""
    packs = [batch.packed for step in steps for batch in step]
    return {
        "cost/update_tokens_computed": sum(len(pack) for pack in packs),
        "cost/update_tokens_saved": sum(pack.unshared_tokens - len(pack) for pack in packs),
    }


def truncated_without_value(groups: Sequence[Group]) -> int:
    """How many truncated trajectories end in a context longer than the model sees, so that 0 stands for its value."""
    return sum(t.truncated and not t.final_prompt for group in groups for t in group.trajectories)


def _outcomes(prefix: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if not turns:
        return {}
    return {
        f"{prefix}success_rate": fmean(t.succeeded for t in trajectories),
        f"{prefix}return": fmean(t.episode_return for t in trajectories),
        f"{prefix}turns": fmean(len(t.turns) for t in trajectories),
        f"{prefix}valid": fmean(turn.valid for turn in turns),
        f"{prefix}effective": fmean(turn.effective for turn in turns),
        f"{prefix}finished": fmean(turn.finished for turn in turns),
        f"{prefix}response_tokens": fmean(len(turn.response) for turn in turns),
    }
