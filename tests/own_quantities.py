"""Parts of objectives that need further quantities per token, each as a user would write it in one file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tsr_lightning.objectives import GroupNormalised, Needs, ShapedTrajectory, Surrogate, Targets
from tsr_lightning.objectives.advantages import Advantages
from tsr_lightning.objectives.terms import SurrogateLoss, clipped_surrogate


@dataclass(frozen=True)
class Decoupled(Surrogate):
    """Decoupled PPO (https://arxiv.org/abs/2505.24298): a clip around the policy before the updates, and a weight for
    how much more likely than under the engine's policy a token was there.

        min(pi_old / mu, cap) * max(-r A, -clip(r) A),   r = pi / pi_old
    """

    cap: float = 2.0

    quantities = ("behaviour_logprobs",)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        weights = (targets.old_logprobs - targets.quantities["behaviour_logprobs"]).exp().clamp(max=self.cap)
        clipped = clipped_surrogate(log_ratios, targets.advantages, low=0.2, high=0.28)
        return clipped._replace(losses=weights * clipped.losses)


@dataclass(frozen=True)
class WithTurnsLeft(GroupNormalised):
    """GRPO's advantage, and for the loss how many turns follow the token's own."""

    @property
    def needs(self) -> Needs:
        return Needs(quantities=("turns_left",))

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return [
            [own._replace(quantities={"turns_left": turns_left(one)}) for one, own in zip(*pair, strict=True)]
            for pair in zip(groups, super().__call__(groups), strict=True)
        ]


def turns_left(shaped: ShapedTrajectory) -> Tensor:
    count = len(shaped.lengths)
    return torch.tensor([float(count - 1 - i) for i, length in enumerate(shaped.lengths) for _ in range(length)])


@dataclass(frozen=True)
class LateTurnsFirst(Surrogate):
    """A token counts the less, the more turns follow it."""

    decay: float = 0.5

    quantities = ("turns_left",)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        clipped = clipped_surrogate(log_ratios, targets.advantages, low=0.2, high=0.28)
        return clipped._replace(losses=self.decay ** targets.quantities["turns_left"] * clipped.losses)


# -- the same with a mistake each --------------------------------------------------------------------------------------


class ForgetsToDeclare(Decoupled):
    quantities = ()


class Misspells(Decoupled):
    quantities = ("behavior_logprobs",)


class GivesUndeclared(WithTurnsLeft):
    needs = Needs()


class GivesOnePerTurn(WithTurnsLeft):
    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        return [
            [own._replace(quantities={"turns_left": torch.zeros(2)}) for own in group]
            for group in super().__call__(groups)
        ]


class ForgetsToGive(GroupNormalised):
    @property
    def needs(self) -> Needs:
        return replace(super().needs, quantities=("turns_left",))
