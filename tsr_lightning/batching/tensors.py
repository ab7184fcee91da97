"""The tensors that objectives read and write.

N is the number of trained tokens: of one member in `Estimates` and `Credit` (turn after turn), of a sequence or a
micro-batch in `Targets` and `Outputs`.

`Credit` and `Targets` hold further quantities per token by name: those that the objective's `Needs.quantities` names,
such as `behaviour_logprobs`, the log-probabilities with which the engine sampled.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates of one member by policy, critic and reference, made before the updates and fixed. All float32."""

    logprobs: Tensor  # [N]; zeros where not needed
    values: Tensor  # [N] V of the context that each token was sampled in; zeros without a critic
    reference_logprobs: Tensor  # [N]; zeros where not needed
    final_value: float  # V of the context after the last turn; 0 where not needed, or beyond the model's context length
    entropies: Tensor = field(default_factory=lambda: torch.empty(0))  # [N] of the policy; empty where not needed

    @classmethod
    def of_logprobs(cls, logprobs: Tensor) -> "Estimates":
        """Log-probabilities [N] alone; the rest is zero."""
        return cls(logprobs, torch.zeros_like(logprobs), torch.zeros_like(logprobs), 0.0)

    @classmethod
    def unknown(cls, tokens: int) -> "Estimates":
        """NaN for N tokens that are not estimated yet, so that no credit takes them for numbers."""
        nothing = torch.full((tokens,), math.nan)
        return cls(nothing, nothing, nothing, math.nan, nothing)

    def flat(self) -> Tensor:
        """[3 N + 1] or, with entropies, [4 N + 1]: all numbers one after the other, as ranks send them."""
        final = torch.tensor([self.final_value])
        return torch.cat([self.logprobs, self.values, self.reference_logprobs, final, self.entropies])

    @classmethod
    def from_flat(cls, numbers: Tensor, tokens: int) -> "Estimates":
        """From what `flat` made of the estimates of N tokens."""
        parts = [tokens, tokens, tokens, 1, len(numbers) - 3 * tokens - 1]
        logprobs, values, reference_logprobs, final_value, entropies = numbers.split(parts)
        return cls(logprobs, values, reference_logprobs, float(final_value), entropies)


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of the trained tokens of one member. All [N], float32."""

    advantages: Tensor
    value_targets: Tensor  # the critic's regression targets
    weights: Tensor  # of the policy loss
    normalizers: Tensor  # an optimizer step divides the policy loss by the sum of these over its tokens
    value_weights: Tensor  # of the value loss; a step divides it by their own sum
    supervised_weights: Tensor  # of the supervised loss; a step divides it by their own sum
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # further ones for the loss, by name

    def map(self, function: Callable[[Tensor], Tensor]) -> "Credit":
        tensors = {each.name: function(getattr(self, each.name)) for each in columns(Credit)}
        return Credit(**tensors, quantities={name: function(one) for name, one in self.quantities.items()})


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets that the loss compares the model's outputs with. All [N], float32.

    In a micro-batch, the weights are already divided: each sums to (at most) 1 over the optimizer step, micro-batches
    and ranks included.
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
    observation_weights: Tensor
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # further ones by name: `Needs.quantities`

    def map(self, function: Callable[[Tensor], Tensor]) -> "Targets":
        tensors = {each.name: function(getattr(self, each.name)) for each in columns(Targets)}
        return Targets(**tensors, quantities={name: function(one) for name, one in self.quantities.items()})

    @classmethod
    def joined(cls, parts: Sequence["Targets"]) -> "Targets":
        """The targets of several sequences, one after the other."""
        tensors = {each.name: torch.cat([getattr(part, each.name) for part in parts]) for each in columns(cls)}
        names = parts[0].quantities
        return cls(**tensors, quantities={name: torch.cat([part.quantities[name] for part in parts]) for name in names})

    @classmethod
    def zeros(cls, count: int) -> "Targets":
        """Targets [N] without credit."""
        tensors: dict[str, Any] = {each.name: torch.zeros(count) for each in columns(cls)}
        return cls(**tensors)


def columns(kind: type[Credit | Targets]) -> list[Field[Any]]:
    """The fields that every objective has; not the quantities by name."""
    return [each for each in fields(kind) if each.name != "quantities"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The model's outputs on a micro-batch. All [N]."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor  # zeros without a critic
