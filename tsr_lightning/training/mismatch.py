"""How far the engine's log-probabilities are from the trainer's, and what follows from it for a rollout's updates."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Needs, Objective
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rng import Key, Stream
from tsr_lightning.trajectory import Origin, Trajectory

LARGEST = 1e-3  # distance in nats of the log-probabilities of an engine and a trainer that agree to rounding
# Mean distances. Of our own engine and a trained small policy: 2e-7 in float32, 1e-3 in bfloat16; one epoch of updates
# moved an adapter by 2e-4, all weights by 4e-3.
TOLERANCE = 1e-4  # in float32
LOW_PRECISION_TOLERANCE = 0.05  # in bfloat16 or 4 bits
CHECKED = 8  # trajectories of a rollout whose log-probabilities are computed for the comparison alone
DEVIATION, DEVIATION_MAX = "rollout/mismatch/deviation", "rollout/mismatch/deviation_max"


def check_updates(objective: Objective, updates: Updates) -> None:
    """Refuses settings of log-probabilities that an objective makes no use of."""
    name = type(objective).__name__
    if updates.correction is not None:
        remedy = f"{name} compares no samples of the policy, so there is nothing to correct; use null"
        correction = type(updates.correction).__name__
        require(objective.compares(Origin.SAMPLED), "data.updates.correction", correction, remedy)
    if updates.reuse_logprobs:
        remedy = f"{name} computes none before the updates, so none are saved; use false"
        require(objective.needs.logprobs, "data.updates.reuse_logprobs", True, remedy)
        remedy = f"the critic of {name} needs the pass that it would save; use false"
        require(not objective.needs.values, "data.updates.reuse_logprobs", True, remedy)


def sampled_logprobs(trajectory: Trajectory) -> Tensor:
    """[N] what the engine said of the tokens of a trajectory."""
    return torch.tensor([logprob for turn in trajectory.turns for logprob in turn.behaviour_logprobs])


def computed(trajectories: Sequence[Trajectory], needs: Needs, updates: Updates, key: Key) -> frozenset[int]:
    """Places of the trajectories whose log-probabilities the trainer computes: all where the objective needs its own.
    Where it takes the engine's, or needs none, they are a sample for the comparison, the same for any number of ranks.

    Args:
        trajectories: of all ranks, in the same order on each.
        needs: the objective's.
        updates: the settings.
        key: of the epoch.
    """
    if needs.values or (needs.logprobs and not updates.reuse_logprobs):
        return frozenset(range(len(trajectories)))
    sampled = [i for i, trajectory in enumerate(trajectories) if trajectory.origin is not Origin.DEMONSTRATED]
    compared = sorted(sampled, key=lambda place: key.fold_in(Stream.COMPARISON, place).bits())[:CHECKED]
    if not needs.logprobs:
        return frozenset(compared)
    return frozenset(compared) | frozenset(range(len(trajectories))) - frozenset(sampled)


def log_ratios(trajectory: Trajectory, estimates: Estimates) -> Tensor:
    """[N] float64, log(pi_old / mu): trainer over engine."""
    return estimates.logprobs.double() - sampled_logprobs(trajectory).double()


def corrected(credit: Credit, trajectory: Trajectory, estimates: Estimates, updates: Updates) -> Credit:
    """The credit with the correction's weights, which scale the advantages: a policy loss is proportional to them, and
    entropy, KL and critic are no expectations over the engine's samples."""
    if updates.correction is None:
        return credit
    lengths = [len(turn.response) for turn in trajectory.turns]
    weights = updates.correction(log_ratios(trajectory, estimates), lengths)
    return replace(credit, advantages=credit.advantages * weights.to(credit.advantages))


def mismatch_metrics(
    trajectories: Sequence[Trajectory], estimates: Sequence[Estimates], compared: Container[int]
) -> dict[str, float]:
    """Of the tokens that the engine sampled and the trainer computed, all ranks together; nothing where there are none.

    Args:
        trajectories: of all ranks.
        estimates: of each.
        compared: places of those that the trainer computed.
    """
    parts = [
        log_ratios(trajectory, each)
        for i, (trajectory, each) in enumerate(zip(trajectories, estimates, strict=True))
        if i in compared and trajectory.origin is not Origin.DEMONSTRATED and trajectory.trained_tokens
    ]
    if not parts:
        return {}
    logs = torch.cat(parts)
    ratios = logs.clamp(-20, 20).exp()
    return {
        DEVIATION: float(logs.abs().mean()),
        DEVIATION_MAX: float(logs.abs().max()),
        "rollout/mismatch/kl": float((torch.expm1(logs.clamp(-20, 20)) - logs).mean()),
        "rollout/mismatch/effective_sample_size": float(ratios.mean().square() / ratios.square().mean()),
    }


def tolerance_of(updates: Updates, spec: PolicySpec, precision: str, staleness: int) -> float | None:
    """`data.updates.mismatch_tolerance` as a number. `auto` has none where dropout makes the trainer's
    log-probabilities random, since they are computed as in an update, and none where rollouts are stale on purpose.

    Args:
        updates: the settings.
        spec: of the policy.
        precision: the Trainer's.
        staleness: epochs that the policy of a rollout may lag behind.
    """
    if updates.mismatch_tolerance != "auto":
        return updates.mismatch_tolerance
    if staleness or (spec.adapter is not None and spec.adapter.dropout > 0):
        return None
    in_float32 = precision == "32-true" and spec.dtype == "float32" and spec.quantisation is None
    return TOLERANCE if in_float32 else LOW_PRECISION_TOLERANCE


def check_mismatch(metrics: Mapping[str, float], updates: Updates, tolerance: float | None) -> None:
    """Stops the run where the engine does not sample from the policy that is trained, and where log-probabilities that
    were reused are not those of the trainer."""
    mean, largest = metrics.get(DEVIATION, 0.0), metrics.get(DEVIATION_MAX, 0.0)
    remedy = (
        f"the engine's log-probabilities of its own samples are {mean:.2g} from the trainer's on average and up to "
        f"{largest:.2g}, so it samples from other weights than are trained, or with stale keys and values of prefixes; "
        "see that the engine's sync takes over all weights and empties its prefix cache, or, where the engine is right "
        f"and only less precise, give more than {mean:.2g}"
    )
    require(tolerance is None or mean <= tolerance, "data.updates.mismatch_tolerance", tolerance, remedy)
    remedy = (
        f"the engine's log-probabilities differ from the trainer's by up to {largest:.2g}, more than rounding "
        f"({LARGEST:g}), so they cannot take the place of the trainer's; use false"
    )
    require(not updates.reuse_logprobs or largest <= LARGEST, "data.updates.reuse_logprobs", True, remedy)
