"""The figures of a rollout and of its updates, logged against epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from statistics import fmean, pstdev

from tsr_lightning.batching.schedule import Batch
from tsr_lightning.batching.tensors import Credit
from tsr_lightning.costs import Costs
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import Compared
from tsr_lightning.objectives.state_graph import states_met
from tsr_lightning.objectives.tree_credit import expanded_states
from tsr_lightning.trajectory import Comparison, Group, Origin, Trajectory


def rollout_metrics(
    groups: Sequence[Group], kept: Sequence[Group], costs: Costs, seconds: float, skipped: int
) -> dict[str, float]:
    """Figures of a rollout, all ranks together.

    Args:
        groups: as rolled out.
        kept: those that are trained on.
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
        **_entropies("rollout/sampled/", [t for t in trajectories if t.origin is Origin.SAMPLED]),
        **_search_gaps("rollout/search_gap/", groups),
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


def update_tokens(steps: Sequence[Sequence[Batch]]) -> dict[str, int]:
    """Tokens of an epoch's updates, on this rank."""
    packs = [batch.packed for step in steps for batch in step]
    return {
        "cost/update_tokens_computed": sum(len(pack) for pack in packs),
        "cost/update_tokens_saved": sum(pack.unshared_tokens - len(pack) for pack in packs),
    }


def update_metrics(updates: int, tokens: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Figures of an epoch's updates, all ranks together.

    Args:
        updates: optimizer steps, in which every rank has a share.
        tokens: of every rank, `update_tokens`.
    """
    return {"cost/updates": updates, **{name: sum(own[name] for own in tokens) for name in tokens[0]}}


def signal_metrics(credits: Sequence[Sequence[Credit]]) -> dict[str, float]:
    """How much of what is trained on moves the policy by its advantage: the share of the groups with at least one such
    token, and of the trained tokens, that have both a weight and an advantage other than 0.

    Args:
        credits: of the groups that the callbacks left, all ranks together.
    """
    signals = [[(credit.weights != 0) & (credit.advantages != 0) for credit in group] for group in credits]
    tokens = sum(signal.numel() for group in signals for signal in group)
    return {
        "rollout/signal_group_share": fmean(any(bool(signal.any()) for signal in group) for group in signals),
        "rollout/signal_token_share": sum(int(signal.sum()) for group in signals for signal in group) / max(tokens, 1),
    }


def tree_metrics(
    groups: Sequence[Group], comparisons: Sequence[Sequence[Group | Comparison]], objective: Objective
) -> dict[str, float]:
    """Counts the states and responses that an objective compares, in search trees or in the graph of states.

    Args:
        groups: that are trained on, with their trees.
        comparisons: of each, `Objective.comparisons`.
        objective: of the epoch.
    """
    if objective.needs.merges_states:
        comparable = sum(states_met(group.trajectories) for group in groups)
    else:
        comparable = sum(len(expanded_states([t.tree for t in group.trajectories])) for group in groups)
    states = [
        (group, part)
        for group, parts in zip(groups, comparisons, strict=True)
        for part in parts
        if isinstance(part, Comparison)
    ]
    differing = sum(not Compared(group, [state], objective).is_uniform() for group, state in states)
    return {
        "rollout/signal_node_share": differing / max(comparable, len(states), 1),
        "rollout/compared_responses": sum(len(state.members) for _, state in states),
    }


def step_metrics(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Figures of an optimizer step, from the parts of `Loss`, all micro-batches and ranks together.

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


def _entropies(prefix: str, sampled: Sequence[Trajectory]) -> dict[str, float]:
    """The policy's entropy in nats, by the mean surprisal of its samples: the expectation of a response's surprisal is
    the entropy of the response. What a search selected is no sample."""
    turns = sum(len(t.turns) for t in sampled)
    tokens = sum(t.trained_tokens for t in sampled)
    surprisal = sum(t.surprisal for t in sampled)
    if not tokens:
        return {}
    return {f"{prefix}entropy_per_token": surprisal / tokens, f"{prefix}entropy_per_turn": surprisal / turns}


def _search_gaps(prefix: str, groups: Sequence[Group]) -> dict[str, float]:
    """By how much the searched trajectories of a group are above its sampled ones: the mean over the groups that hold
    both, so of the same instances and the same policy."""
    pairs = [(_of(Origin.SEARCHED, group), _of(Origin.SAMPLED, group)) for group in groups]
    pairs = [(searched, sampled) for searched, sampled in pairs if searched and sampled]
    if not pairs:
        return {}
    compared = {"success_rate": attrgetter("succeeded"), "return": attrgetter("episode_return")}
    return {
        f"{prefix}{name}": fmean(fmean(map(of, searched)) - fmean(map(of, sampled)) for searched, sampled in pairs)
        for name, of in compared.items()
    }


def _of(origin: Origin, group: Group) -> list[Trajectory]:
    return [trajectory for trajectory in group.trajectories if trajectory.origin is origin]


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
