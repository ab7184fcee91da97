"""The tensors that objectives read and write.

N is the number of trained tokens: of one trajectory in `Estimates` and `Credit` (turn after turn), of a sequence or a
micro-batch in `Targets` and `Outputs`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Estimates:
    """What policy, critic and reference estimate of one trajectory before the updates, fixed for all of them. All
    float32."""

    logprobs: Tensor  # [N]; zeros where not needed
    values: Tensor  # [N] V of the context that each token was sampled in; zeros without a critic
    reference_logprobs: Tensor  # [N]; zeros where not needed
    final_value: float  # V of the context after the last turn; 0 where not needed, or beyond the model's context length

    def flat(self) -> Tensor:
        """[3 N + 1], all numbers one after the other, as ranks send them to each other."""
        return torch.cat([self.logprobs, self.values, self.reference_logprobs, torch.tensor([self.final_value])])

    @classmethod
    def from_flat(cls, numbers: Tensor) -> "Estimates":
        count = len(numbers) // 3
        logprobs, values, reference_logprobs, final_value = numbers.split([count, count, count, 1])
        return cls(logprobs, values, reference_logprobs, float(final_value))


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of the trained tokens of one trajectory. All [N], float32."""

    advantages: Tensor
    value_targets: Tensor  # the critic's regression targets
    weights: Tensor  # of the policy loss
    normalizers: Tensor  # an optimizer step divides the policy loss by the sum of these over its tokens
    value_weights: Tensor  # of the value loss; a step divides it by their own sum
    supervised_weights: Tensor  # of the supervised loss; a step divides it by their own sum


@dataclass(frozen=True, slots=True)
class Targets:
    """What the loss compares the model's outputs with. All [N], float32.

    In a micro-batch, the three weights are already divided: each sums to (at most) 1 over the optimizer step,
    micro-batches and ranks included.
    """

    old_logprobs: Tensor  # before the updates
    old_values: Tensor
    reference_logprobs: Tensor
    advantages: Tensor
    value_targets: Tensor
    weights: Tensor
    value_weights: Tensor
    supervised_weights: Tensor
    turn_starts: Tensor  # 1 at the first trained token of each turn, 0 at the others; no turn is split

    def map(self, function: Callable[[Tensor], Tensor]) -> "Targets":
        return Targets(*(function(getattr(self, field.name)) for field in fields(Targets)))


@dataclass(frozen=True, slots=True)
class Outputs:
    """The model's outputs on a micro-batch. All [N]."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor  # zeros without a critic
