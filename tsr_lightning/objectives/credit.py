"""Credit put together from its parts: the advantages, how tokens are averaged, what is done with searched ones."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from tsr_lightning.objectives.advantages import Advantages, whiten
from tsr_lightning.objectives.aggregation import Aggregation
from tsr_lightning.objectives.base import Credit
from tsr_lightning.objectives.searched import CreditOverride
from tsr_lightning.trajectory import Group


def constant_advantage(advantage: float, tokens: int) -> Advantages:
    """The same for each of N tokens; without a critic, so returns are 0."""
    return Advantages(torch.full((tokens,), advantage), torch.zeros(tokens))


def assemble(estimate: Advantages, aggregation: Aggregation, *, critic: bool) -> Credit:
    """The credit of one trajectory of N trained tokens, before anything is imposed on it."""
    tokens = estimate.advantages.numel()
    weight, normalizer = aggregation.weigh(tokens) if tokens else (0.0, 0.0)
    weights = torch.full((tokens,), weight)
    return Credit(
        advantages=estimate.advantages,
        value_targets=estimate.value_targets,
        weights=weights,
        normalizers=torch.full((tokens,), normalizer),
        value_weights=weights if critic else torch.zeros(tokens),
    )


def impose(credit: Credit, imposed: CreditOverride | None) -> Credit:
    """The policy's part of the credit replaced; the critic's is left."""
    if imposed is None:
        return credit
    return replace(
        credit,
        advantages=torch.full_like(credit.advantages, imposed.advantage),
        weights=credit.weights * imposed.weight,
        normalizers=credit.normalizers * imposed.weight,
    )


def whitened(credits: Sequence[Credit], own: Sequence[bool]) -> list[Credit]:
    """Advantages whitened over the tokens of all trajectories together, as the loss weighs them.

    Args:
        credits: One per trajectory.
        own: One per trajectory, whether it counts: False where its advantage will be imposed.
    """
    if not credits:
        return []
    counted = [credit.weights * counts for credit, counts in zip(credits, own, strict=True)]
    joined = whiten(torch.cat([credit.advantages for credit in credits]), torch.cat(counted))
    parts = torch.split(joined, [credit.advantages.numel() for credit in credits])
    return [replace(credit, advantages=part) for credit, part in zip(credits, parts, strict=True)]


def regroup(credits: Iterable[Credit], groups: Sequence[Group]) -> list[list[Credit]]:
    """One credit per trajectory, in order, indexed as `groups[i].trajectories[j]`."""
    remaining = iter(credits)
    return [[next(remaining) for _ in group.trajectories] for group in groups]
