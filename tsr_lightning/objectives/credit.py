"""Credit composed of its parts: advantages, an aggregation, and overrides for some trajectories."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Credit
from tsr_lightning.objectives.advantages import Advantages, whiten
from tsr_lightning.objectives.aggregation import Aggregation
from tsr_lightning.objectives.searched import CreditOverride
from tsr_lightning.trajectory import Comparison, Group, Member


def restricted_to_uncertain(credits: Sequence[Credit], entropies: Sequence[Tensor], quantile: float) -> list[Credit]:
    """Advantages 0 where the policy was surer than in this share of the tokens: the mask of
    https://arxiv.org/abs/2506.01939, as TRL's `top_entropy_quantile`.

    A surrogate is proportional to the advantage, so it alone loses these tokens; entropy bonus, KL term and normalizers
    keep them. Departs from TRL, which restricts the entropy bonus too and takes the entropies of the present policy and
    the quantile of a micro-batch: here both are those of the whole rollout, before its updates.

    Args:
        credits: one per member.
        entropies: [N] of each.
        quantile: share of the tokens with a weight that is kept.
    """
    counted = [spread[credit.weights > 0] for credit, spread in zip(credits, entropies, strict=True)]
    if not any(map(len, counted)):
        return list(credits)
    threshold = float(np.quantile(torch.cat(counted).numpy(), 1 - quantile))  # PyTorch's takes 2^24 values at most
    return [
        replace(credit, advantages=credit.advantages * (spread >= threshold))
        for credit, spread in zip(credits, entropies, strict=True)
    ]


def without_critic(credit: Credit) -> Credit:
    """The credit where no critic is trained."""
    return replace(credit, value_weights=torch.zeros_like(credit.weights))


def weighted(estimate: Advantages, aggregation: Aggregation, group_weight: float = 1.0) -> Credit:
    """The credit of one trajectory of N trained tokens, before any override; the critic's weights are those of the
    aggregation, times that of the group."""
    tokens = estimate.advantages.numel()
    weight, normalizer = aggregation.weighting(tokens) if tokens else (0.0, 0.0)
    weights = torch.full((tokens,), weight * group_weight)
    return Credit(
        advantages=estimate.advantages,
        value_targets=estimate.value_targets,
        weights=weights * estimate.weight,
        normalizers=torch.full((tokens,), normalizer * group_weight * estimate.weight),
        value_weights=weights,
        supervised_weights=torch.zeros(tokens),
        quantities=dict(estimate.quantities),
    )


def apply_override(credit: Credit, override: CreditOverride | None) -> Credit:
    """Replaces the policy's part of the credit."""
    if override is None:
        return credit
    return replace(
        credit,
        advantages=torch.full_like(credit.advantages, override.advantage),
        weights=credit.weights * override.weight,
        normalizers=credit.normalizers * override.weight,
    )


def penalise_format(credit: Credit, member: Member, penalty: float) -> Credit:
    """Takes the penalty off the advantages of the tokens of turns whose text could not be read."""
    if not penalty:
        return credit
    invalid = [float(not turn.valid) for turn in member.turns for _ in turn.response]  # [N]
    return replace(credit, advantages=credit.advantages - penalty * torch.tensor(invalid))


def whitened(credits: Sequence[Credit], included: Sequence[bool]) -> list[Credit]:
    """Advantages whitened over the tokens of all trajectories together, as the loss weights them.

    Args:
        credits: one per member.
        included: True where a member counts towards mean and variance; False where its credit is overridden.
    """
    if not credits:
        return []
    weights = [credit.weights * counts for credit, counts in zip(credits, included, strict=True)]
    advantages = whiten(torch.cat([credit.advantages for credit in credits]), torch.cat(weights))
    parts = torch.split(advantages, [credit.advantages.numel() for credit in credits])
    return [replace(credit, advantages=part) for credit, part in zip(credits, parts, strict=True)]


def regroup(credits: Iterable[Credit], groups: Sequence[Group | Comparison]) -> list[list[Credit]]:
    """One credit per member, in order, indexed as `groups[i].members[j]`."""
    remaining = iter(credits)
    return [[next(remaining) for _ in group.members] for group in groups]
