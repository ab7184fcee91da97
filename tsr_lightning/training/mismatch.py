"""How far the engine's log-probabilities are from the trainer's, and what follows from it for a rollout's updates."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.trajectory import Origin, Trajectory

TOLERANCE = 1e-3  # between the log-probabilities of an engine and a trainer that agree to rounding
CHECKED = 8  # trajectories of a rank whose log-probabilities are computed though they are reused


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


def reusable(trajectories: Sequence[Trajectory]) -> frozenset[int]:
    """Places of the trajectories whose log-probabilities need not be computed where the engine's are reused: not those
    of demonstrations, of which it said nothing, nor of a few that are compared with it."""
    sampled = [i for i, trajectory in enumerate(trajectories) if trajectory.origin is not Origin.DEMONSTRATED]
    step = max(1, -(-len(sampled) // CHECKED))
    return frozenset(sampled) - frozenset(sampled[::step])


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


def mismatch_metrics(trajectories: Sequence[Trajectory], estimates: Sequence[Estimates]) -> dict[str, float]:
    """Of the tokens that the engine sampled, all ranks together; nothing where there are none."""
    pairs = zip(trajectories, estimates, strict=True)
    parts = [log_ratios(t, each) for t, each in pairs if t.origin is not Origin.DEMONSTRATED and t.trained_tokens]
    if not parts:
        return {}
    logs = torch.cat(parts)
    ratios = logs.clamp(-20, 20).exp()
    return {
        "rollout/mismatch/deviation": float(logs.abs().mean()),
        "rollout/mismatch/deviation_max": float(logs.abs().max()),
        "rollout/mismatch/kl": float((torch.expm1(logs.clamp(-20, 20)) - logs).mean()),
        "rollout/mismatch/effective_sample_size": float(ratios.mean().square() / ratios.square().mean()),
    }


def check_reuse(metrics: dict[str, float], updates: Updates) -> None:
    """Stops the run where the log-probabilities that were reused are not those of the trainer."""
    deviation = metrics.get("rollout/mismatch/deviation_max", 0.0)
    remedy = (
        f"the engine's log-probabilities differ from the trainer's by up to {deviation:.2g}, more than rounding "
        f"({TOLERANCE:g}), so they cannot take the place of the trainer's; use false"
    )
    require(not updates.reuse_logprobs or deviation <= TOLERANCE, "data.updates.reuse_logprobs", True, remedy)
