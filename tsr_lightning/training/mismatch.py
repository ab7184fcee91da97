"""Compares the engine's log-probabilities with the trainer's, corrects for their distance, and bounds it."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from math import exp, log

import torch
from torch import Tensor

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import sampled_logprobs
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.errors import RunError, require
from tsr_lightning.objectives.base import Needs, Objective
from tsr_lightning.objectives.supervised import SFT
from tsr_lightning.policy.spec import PolicySpec, in_float32
from tsr_lightning.trajectory import Origin, Piece

LARGEST = 1e-3  # distance in nats of the log-probabilities of an engine and a trainer that agree to rounding
# KL in nats a token, at temperature 1. Float32: 1e-13 on a trained small policy, below 5e-10 on a model of 135M, 3e-7
# where an adapter and 3e-5 where all weights were one epoch of updates behind. The 135M model in 4 bits with bfloat16:
# 0.0027 where engine and trainer agree, 0.032 where the engine's temperature was a tenth lower.
TOLERANCE = 1e-8  # in float32
LOW_PRECISION_TOLERANCE = 0.01  # in bfloat16 or 4 bits
DEVIATION, DEVIATION_MAX = "rollout/mismatch/deviation", "rollout/mismatch/deviation_max"
KL, EFFECTIVE_SAMPLE_SIZE = "rollout/mismatch/kl", "rollout/mismatch/effective_sample_size"


def check_updates(objective: Objective, updates: Updates) -> None:
    """Refuses updates that an objective has no ratio for, and settings of log-probabilities that it makes no use of."""
    name = type(objective).__name__
    if objective.needs.one_update and objective.compares(Origin.SAMPLED):
        for key, value in (("epochs", updates.epochs), ("minibatches", updates.minibatches)):
            remedy = f"the loss of {name} has no ratio, so later updates would take old samples for the policy's; use 1"
            require(value == 1, f"data.updates.{key}", value, remedy)
    if updates.correction is not None:
        remedy = f"{name} compares no samples of the policy, so there is nothing to correct; use null"
        correction = type(updates.correction).__name__
        require(objective.compares(Origin.SAMPLED), "data.updates.correction", correction, remedy)
    if updates.target_kl is not None:
        remedy = f"{name} learns from demonstrations, and its loss measures no distance to the policy before; use null"
        require(not isinstance(objective, SFT), "data.updates.target_kl", updates.target_kl, remedy)
    remedy = f"{name} computes none before the updates, so none are saved; use false"
    is_off = updates.reuse_logprobs is False
    require(is_off or objective.needs.logprobs, "data.updates.reuse_logprobs", updates.reuse_logprobs, remedy)
    if updates.reuse_logprobs is True:
        remedy = f"the critic of {name} needs the pass that it would save; use false"
        require(not objective.needs.values, "data.updates.reuse_logprobs", True, remedy)
        remedy = f"{name} needs entropies (top_entropy_quantile), of the pass that it would save; use false"
        require(not objective.needs.entropies, "data.updates.reuse_logprobs", True, remedy)


def log_ratios(piece: Piece, estimates: Estimates) -> Tensor:
    """[N] float64, log(pi_old / mu): trainer over engine."""
    return estimates.logprobs.double() - sampled_logprobs(piece).double()


def corrected(credit: Credit, piece: Piece, estimates: Estimates, updates: Updates) -> Credit:
    """The credit with the correction's weights, which scale the advantages: a policy loss is proportional to them, and
    entropy, KL and critic are no expectations over the engine's samples."""
    if updates.correction is None:
        return credit
    lengths = [len(turn.response) for turn in piece.turns]
    weights = updates.correction(log_ratios(piece, estimates), lengths)
    return replace(credit, advantages=credit.advantages * weights.to(credit.advantages))


def mismatch_metrics(
    pieces: Sequence[Piece], estimates: Sequence[Estimates], compared: Container[int]
) -> dict[str, float]:
    """Metrics of the tokens that the engine sampled and the trainer computed, all ranks together; empty without any.

    Args:
        pieces: trajectories and turns of trees, of all ranks.
        estimates: of each.
        compared: places of those that the trainer computed.
    """
    parts = [
        log_ratios(piece, each)
        for i, (piece, each) in enumerate(zip(pieces, estimates, strict=True))
        if i in compared and piece.origin.is_sampled and piece.trained_tokens
    ]
    if not parts:
        return {}
    logs = torch.cat(parts)
    ratios = logs.clamp(-20, 20).exp()
    return {
        DEVIATION: float(logs.abs().mean()),
        DEVIATION_MAX: float(logs.abs().max()),
        KL: float((torch.expm1(logs.clamp(-20, 20)) - logs).mean()),
        EFFECTIVE_SAMPLE_SIZE: float(ratios.mean().square() / ratios.square().mean()),
    }


def within_rounding(metrics: Mapping[str, float]) -> bool:
    """True if no token that was compared differs by more than rounding; a NaN does."""
    return metrics.get(DEVIATION_MAX, 0.0) <= LARGEST


def tolerance_of(
    updates: Updates, spec: PolicySpec, precision: str, temperature: float, *, of_others: bool
) -> float | None:
    """`data.updates.mismatch_tolerance` as a number. `auto` has none where dropout makes the trainer's
    log-probabilities random, since they are computed as in an update, and none where rollouts are of other weights on
    purpose.

    Args:
        updates: the settings.
        spec: of the policy.
        precision: the Trainer's.
        temperature: of sampling, which divides logits and so multiplies their rounding.
        of_others: whether rollouts may be of other weights, as stale (`data.staleness`) and saved ones (`data.replay`).
    """
    if updates.mismatch_tolerance != "auto":
        return updates.mismatch_tolerance
    if of_others or _is_random(spec):
        return None
    return (TOLERANCE if _in_float32(spec, precision) else LOW_PRECISION_TOLERANCE) / min(temperature, 1.0)


def _is_random(spec: PolicySpec) -> bool:
    """True if dropout draws another policy for every pass."""
    return spec.adapter is not None and spec.adapter.dropout > 0


def _in_float32(spec: PolicySpec, precision: str) -> bool:
    return precision == "32-true" and in_float32(spec)


def reuse_obstacle(needs: Needs, updates: Updates, spec: PolicySpec, precision: str, staleness: int) -> str | None:
    """Why `reuse_logprobs: auto` computes log-probabilities without a look at the engine's; None where that decides.
    Arguments as of `tolerance_of`, with the objective's needs and the epochs that a rollout's policy may lag behind."""
    obstacles = {
        "the objective needs values or entropies of the same pass": needs.values or needs.entropies,
        "the correction compares them with the engine's": updates.correction is not None,
        "engine and trainer agree to rounding in float32 alone": not _in_float32(spec, precision),
        "dropout draws another policy in every pass": _is_random(spec),
        "with data.staleness the engine's are those of older weights": staleness > 0,
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


def describe_reuse(metrics: Mapping[str, float]) -> str:
    """What the comparison of engine and trainer decided under `reuse_logprobs: auto`; "" where nothing was compared."""
    if DEVIATION_MAX not in metrics:
        return ""
    taken = "taken from the engine, whose" if within_rounding(metrics) else "computed, since the engine's"
    return (
        f"old log-probabilities are {taken} differ from the trainer's by up to {metrics[DEVIATION_MAX]:.2g} "
        f"(rounding is at most {LARGEST:g})"
    )


def least_sample_size(tolerance: float) -> float:
    """The least effective sample size that goes with a KL: that of log-normal ratios with five times the KL.

    Of those it is exp(-2 KL). Ratios with long tails have a smaller one: a few samples then carry the updates.
    """
    return exp(-10 * tolerance)


def check_mismatch(metrics: Mapping[str, float], tolerance: float | None, *, is_updated: bool = True) -> None:
    """Stops the run where the engine does not sample from the policy that is trained.

    Args:
        metrics: of a rollout.
        tolerance: the largest KL; None stops at none.
        is_updated: False before the first update of all, when no weights can be stale.

    Raises:
        RunError: engine and trainer differ by more than the tolerance.
    """
    kl, ess = metrics.get(KL, 0.0), metrics.get(EFFECTIVE_SAMPLE_SIZE, 1.0)
    largest = metrics.get(DEVIATION_MAX, 0.0)
    if tolerance is not None and not (kl <= tolerance and ess >= least_sample_size(tolerance)):
        stale = (
            "weights that it did not take over, or keys and values of older weights in its prefix cache"
            if is_updated
            else "other weights (not stale ones: no update was made yet)"
        )
        raise RunError(
            "the engine's log-probabilities of its own samples are not the trainer's: a KL of "
            f"{kl:.2g} nats a token and an effective sample size of {ess:.7g}, where data.updates.mismatch_tolerance "
            f"allows at most {tolerance:.2g} and at least {least_sample_size(tolerance):.7g} (mean distance "
            f"{metrics.get(DEVIATION, 0.0):.2g}, largest {largest:.2g}); these figures do not tell the cause: {stale}, "
            "another temperature, other kernels, or rounding; compare in float32 (--trainer.precision 32-true "
            "--model.policy.dtype float32), and if it was rounding alone, give more than "
            f"{max(kl, -log(ess) / 10 if ess > 0 else kl):.2g}"
        )
