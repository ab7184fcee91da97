"""Runs with one fault each, which `tsr probe` has to name: objectives, a scorer and an engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from tsr_lightning import GRPO, PPO, EngineSpec, Node, Policy, Scorer, Transformers
from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.base import Loss
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Comparison, Group


@dataclass(frozen=True)
class FlippedSign(GRPO):
    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        return super().loss(replace(targets, advantages=-targets.advantages), outputs)


@dataclass(frozen=True)
class ShiftedMask(GRPO):
    """Each token is credited for what its neighbour in the packed batch earned."""

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        shifted = replace(targets, advantages=targets.advantages.roll(1), weights=targets.weights.roll(1))
        return super().loss(shifted, outputs)


@dataclass(frozen=True)
class ZeroAdvantage(GRPO):
    def credit(
        self, groups: Sequence[Group | Comparison], estimates: Sequence[Sequence[Estimates]]
    ) -> list[list[Credit]]:
        credits = super().credit(groups, estimates)
        return [[replace(one, advantages=torch.zeros_like(one.advantages)) for one in group] for group in credits]


@dataclass(frozen=True)
class DeafCritic(PPO):
    """Its values are fitted to the same number everywhere."""

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        same = torch.full_like(targets.value_targets, 0.5)
        return super().loss(replace(targets, value_targets=same), outputs)


@dataclass(frozen=True)
class Noise(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Any) -> list[float]:
        return [Key(0).fold_in("noise", str(node.turns[-1].response)).uniform(0) for node in nodes]


@dataclass(frozen=True)
class Stale(EngineSpec):
    """Samples from the weights that it was built with."""

    inner: Transformers = field(default_factory=Transformers)
    can_exclude: ClassVar[bool] = True

    def build(self, model: Policy, end_ids: frozenset[int], context_tokens: int) -> Any:
        return self.inner.build(model.frozen_copy(), end_ids, context_tokens)
