"""A distribution over the responses proposed in a state as what the policy is drawn to, instead of their values.

With p the policy among these responses and p' the target, a step down their cross-entropy goes along
sum (p' - p) grad log pi. So a response is compared by p' - p, times the members of its comparison and divided by how
often it is one of them: the mean over them is 0, and a baseline of their mean leaves it as it is.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tsr_lightning.errors import require
from tsr_lightning.trajectory import TreePath


class Proposed(NamedTuple):
    """The distinct responses of a state. R of them."""

    logits: Tensor  # [R] log-probability of each under the policy that sampled
    values: Tensor  # [R] by the backup
    estimated: Tensor  # [R] bool: it was searched on or scored, or ended the episode; elsewhere nothing is known
    draws: Tensor  # [R] how often it was drawn


class CandidateTarget(ABC):
    """A distribution over the responses of a state."""

    @abstractmethod
    def __call__(self, proposed: Proposed) -> tuple[Tensor, Tensor]:
        """The target [R], and what it improves on [R]; both sum to 1."""

    def compared(self, members: Sequence[TreePath], estimated: Sequence[bool]) -> tuple[TreePath, ...]:
        """The single responses of a comparison, with how far the target lies above the policy for their values."""
        keys = [member.turns[0].response for member in members]
        draws = Counter(keys)
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        proposed = Proposed(
            torch.tensor([sum(members[i].turns[0].behaviour_logprobs) for i in first.values()], dtype=torch.float64),
            torch.tensor([members[i].value for i in first.values()], dtype=torch.float64),
            torch.tensor([estimated[i] for i in first.values()]),
            torch.tensor([draws[key] for key in first], dtype=torch.float64),
        )
        target, policy = self(proposed)
        gains = dict(zip(first, ((target - policy) * len(members) / proposed.draws).tolist(), strict=True))
        return tuple(replace(member, value=gains[key]) for member, key in zip(members, keys, strict=True))


@dataclass(frozen=True)
class ImprovedPolicy(CandidateTarget):
    """Gumbel MuZero's policy improvement, softmax(logits + scale * completed q): equations 10 and 11 of
    https://openreview.net/forum?id=bERaNdoegnO, `gumbel_muzero_policy` of https://github.com/google-deepmind/mctx.

    Departs from the paper: only what was proposed has a probability; a pruned response has the value of its score, by
    which it was pruned, and what was neither searched on nor scored the mean of the others, into which no network's
    value is mixed; q is not rescaled to [0, 1] in each state, which would stretch small gaps of crude scores, and the
    scale is constant where the paper's grows with the visits, (50 + the most visits of a child) / 10.

    Log-probabilities are those of whole responses. Where these have many tokens they lie tens of nats apart, which no
    scale of values outweighs: then the target is the policy and teaches nothing. `ExponentialWeights` has no such
    limit.

    Args:
        scale: how far values outweigh the policy's own log-probabilities.
    """

    scale: float = 5.0

    def __post_init__(self) -> None:
        require_scale("ImprovedPolicy.scale", self.scale)

    def __call__(self, proposed: Proposed) -> tuple[Tensor, Tensor]:
        q = completed(proposed.values, proposed.estimated, proposed.logits)
        return improved(proposed.logits, q, self.scale), proposed.logits.softmax(-1)


@dataclass(frozen=True)
class ExponentialWeights(CandidateTarget):
    """Each draw is weighted by exp(scale * value), as by MPO's E-step (https://arxiv.org/abs/1806.06920): distils the
    search over all of its candidates into the policy, not only over those it went on with. How often a response was
    drawn stands for its probability.

    Args:
        scale: of the values, the inverse of MPO's temperature.
    """

    scale: float = 5.0

    def __post_init__(self) -> None:
        require_scale("ExponentialWeights.scale", self.scale)

    def __call__(self, proposed: Proposed) -> tuple[Tensor, Tensor]:
        drawn = proposed.draws / proposed.draws.sum()
        return improved(drawn.log(), proposed.values, self.scale), drawn


def require_scale(key: str, scale: float) -> None:
    require(0 < scale < float("inf"), key, scale, "give a positive number, such as 5.0")


def improved(logits: Tensor, values: Tensor, scale: float) -> Tensor:
    """softmax(logits + scale * values), [R]."""
    return (logits + scale * values).softmax(-1)


def completed(values: Tensor, estimated: Tensor, logits: Tensor) -> Tensor:
    """Values [R] in which those without an estimate are the mean of the others, weighted by the policy: mctx's
    `_compute_mixed_value` where the state's own value is that mean too. As given where none or all have one."""
    if not estimated.any():
        return values
    weights = logits.masked_fill(~estimated, -torch.inf).softmax(-1)  # of the estimated alone, however unlikely
    return torch.where(estimated, values, (weights * values).sum())
