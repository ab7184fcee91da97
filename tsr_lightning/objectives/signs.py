"""Checks the signs of an objective on made-up trajectories: what is better gets more credit, and becomes likelier."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Credit, Outputs, Targets
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.made_up import EVERYTHING, estimates_of
from tsr_lightning.trajectory import Comparison, Group, Member


def check_advantages(name: str, returns: Tensor, risen: Tensor) -> None:
    """Refuses advantages that fall where returns rise.

    Args:
        name: of the estimator.
        returns: [N] of the trajectory of each token.
        risen: [N] how much the advantages change when returns that had the other sign become these.
    """
    if (returns * risen).sum() < 0:
        raise ConfigError(f"{name} gives lower advantages for higher returns: change the sign")


def check_values(name: str, comparison: Comparison) -> None:
    """Refuses values by which every success is worse than every failure."""
    successes = [member.value for member in comparison.members if member.succeeded]
    failures = [member.value for member in comparison.members if not member.succeeded]
    if successes and failures and max(successes) < min(failures):
        raise ConfigError(
            f"{name} gives a success the value {max(successes):.2f} and a failure {min(failures):.2f} in one "
            "comparison: change the sign"
        )


def check_loss(objective: Objective, parts: Sequence[Group | Comparison]) -> None:
    """Refuses a loss that makes tokens of a positive advantage less likely, by the policy that sampled them, or that
    makes none of them more likely."""
    estimates = [[estimates_of(member, EVERYTHING) for member in part.members] for part in parts]
    credits = objective.credit(parts, estimates)
    gain = sum(
        _gain(objective, member, credit)
        for part, own in zip(parts, credits, strict=True)
        for member, credit in zip(part.members, own, strict=True)
    )
    name = type(objective).__name__
    if gain == 0 and any((one.advantages * one.weights).any() for own in credits for one in own):
        raise ConfigError(
            f"{name} has a loss that makes no token of a positive advantage more likely: let it depend on the "
            "log-probabilities, with their gradient"
        )
    if gain < 0:
        raise ConfigError(f"{name} has a loss that makes tokens of a positive advantage less likely: change the sign")


@torch.enable_grad()
def _gain(objective: Objective, member: Member, credit: Credit) -> float:
    """How much a small step down the policy's loss raises the likelihood of tokens, times their advantages."""
    logprobs = torch.tensor([logprob for turn in member.turns for logprob in turn.behaviour_logprobs])
    zeros = torch.zeros_like(logprobs)
    targets = replace(
        Targets.zeros(len(logprobs)),
        old_logprobs=logprobs,
        reference_logprobs=logprobs,
        advantages=credit.advantages,
        weights=credit.weights,
        turn_starts=torch.cat([torch.eye(len(turn.response))[0] for turn in member.turns]),
        quantities={"behaviour_logprobs": logprobs, **credit.quantities},
    )
    moved = logprobs.clone().requires_grad_()
    loss = objective.loss(targets, Outputs(moved, zeros, zeros)).total
    if not loss.requires_grad:
        return 0.0
    [gradient] = torch.autograd.grad(loss, moved, allow_unused=True)
    return 0.0 if gradient is None else -float((gradient * credit.advantages * credit.weights).sum())
