"""Policy losses per token, given the log importance ratios and the advantages. All tensors are [N]."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Targets
from tsr_lightning.errors import require
from tsr_lightning.objectives.terms import (
    SurrogateLoss,
    clipped_surrogate,
    clipped_weight,
    geometric_mean,
    soft_gate,
    turn_log_ratios,
)


class Surrogate(ABC):
    """A policy loss per token, minimised in place of maximising the expected return."""

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the further quantities per token that it reads from `Targets.quantities`; see `Needs.quantities`."""
        return ()

    @property
    def one_update(self) -> bool:
        """True if it has no ratio, so that a second update of a rollout would take its samples for the policy's own."""
        return False

    @abstractmethod
    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        """The loss of each token.

        Args:
            logprobs: [N] log pi.
            log_ratios: [N] log(pi / pi_old), limited so that the exponential is finite.
            targets: advantages [N], and where turns start.
        """


@dataclass(frozen=True)
class Clipped(Surrogate):
    """PPO's clipped ratio per token, with the two widths of DAPO. See `terms.clipped_surrogate`.

    Args:
        low: the importance ratio is clipped at 1 - low.
        high: and at 1 + high; wider than low, it lets unlikely tokens grow.
        dual: the bound of the ratio where the advantage is negative (dual clip, https://arxiv.org/abs/1912.09729),
            above 1; null is off. verl has 3.0.
    """

    low: float = 0.2
    high: float = 0.28
    dual: float | None = None

    def __post_init__(self) -> None:
        require_width("Clipped.low", self.low, 0.2)
        require_width("Clipped.high", self.high, 0.28)
        if self.dual is not None:
            remedy = "it bounds ratios above 1; use e.g. 3.0, or null for no bound"
            require(1 < self.dual < float("inf"), "Clipped.dual", self.dual, remedy)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        return clipped_surrogate(log_ratios, targets.advantages, low=self.low, high=self.high, dual=self.dual)


@dataclass(frozen=True)
class ClippedWeight(Surrogate):
    """CISPO's: the log-likelihood, weighted by the advantage and a clipped importance ratio without a gradient. See
    `terms.clipped_weight`.

    The clip limits how much a token counts; no token loses its gradient, unlike with `Clipped`. The clip fractions
    count the tokens whose weight was limited.

    Args:
        low: the importance ratio is clipped at 1 - low; null has no lower bound.
        high: and at 1 + high.
    """

    low: float | None = None
    high: float = 0.28

    def __post_init__(self) -> None:
        if self.low is not None:
            require_width("ClippedWeight.low", self.low, 0.2)
        require_width("ClippedWeight.high", self.high, 0.28)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        return clipped_weight(logprobs, log_ratios, targets.advantages, low=self.low, high=self.high)


@dataclass(frozen=True)
class TurnClipped(Surrogate):
    """GSPO's: all tokens of a turn share one importance ratio, the geometric mean of theirs, and one clip. See
    `terms.turn_log_ratios` and `terms.clipped_surrogate`.

    A mean over a turn varies far less than a token's ratio, hence the narrow widths.

    Args:
        low: the turn's ratio is clipped at 1 - low.
        high: and at 1 + high.
    """

    low: float = 3e-4
    high: float = 4e-4

    def __post_init__(self) -> None:
        require_width("TurnClipped.low", self.low, 3e-4)
        require_width("TurnClipped.high", self.high, 4e-4)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        of_turns = turn_log_ratios(logprobs, log_ratios, targets.turn_starts)
        return clipped_surrogate(of_turns, targets.advantages, low=self.low, high=self.high)


@dataclass(frozen=True)
class SoftGate(Surrogate):
    """SAPO's: a sigmoid of the ratio instead of a clip, so that the gradient fades and does not end. See
    `terms.soft_gate`.

    Args:
        positive: how fast it fades where the advantage is positive (the paper's temperature).
        negative: and where it is negative; faster, since those gradients spread over all other tokens.
    """

    positive: float = 1.0
    negative: float = 1.05

    def __post_init__(self) -> None:
        require_width("SoftGate.positive", self.positive, 1.0)
        require_width("SoftGate.negative", self.negative, 1.05)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        return soft_gate(log_ratios, targets.advantages, positive=self.positive, negative=self.negative)


@dataclass(frozen=True)
class GeometricMean(Surrogate):
    """GMPO's: the geometric mean of a turn's clipped ratios, which an outlier moves little. See `terms.geometric_mean`.

    Args:
        width: of the clip, of the logarithm of a ratio; far wider than other clips, as the mean of a turn varies less.
    """

    width: float = 0.4

    def __post_init__(self) -> None:
        require_width("GeometricMean.width", self.width, 0.4)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        return geometric_mean(log_ratios, targets.advantages, targets.turn_starts, width=self.width)


@dataclass(frozen=True)
class Unclipped(Surrogate):
    """The policy gradient itself, -A log pi, without a ratio: GPG, https://arxiv.org/abs/2504.02546. For steps that are
    on policy, one a rollout.

    Departs from GPG: its factor for groups without a signal is not there. A step is divided by the weights of all that
    was compared, so such groups make it smaller, unless a filter drops them.
    """

    one_update = True

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> SurrogateLoss:
        never = torch.zeros_like(logprobs, dtype=torch.bool)
        return SurrogateLoss(-targets.advantages * logprobs, log_ratios.detach(), never, never)


def require_width(key: str, width: float, example: float) -> None:
    require(width > 0, key, width, f"a clip is a positive width around a ratio of 1; use e.g. {example}")
