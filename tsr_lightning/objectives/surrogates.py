"""Policy losses per token, given the log importance ratios and the advantages. All tensors are [N]."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from tsr_lightning.batching.tensors import Targets
from tsr_lightning.errors import require
from tsr_lightning.objectives.terms import ClippedLoss, clipped_surrogate


class Surrogate(ABC):
    """What is minimised in place of the expected return."""

    @abstractmethod
    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> ClippedLoss:
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
    """

    low: float = 0.2
    high: float = 0.28

    def __post_init__(self) -> None:
        require_width("Clipped.low", self.low, 0.2)
        require_width("Clipped.high", self.high, 0.28)

    def __call__(self, logprobs: Tensor, log_ratios: Tensor, targets: Targets) -> ClippedLoss:
        return clipped_surrogate(log_ratios, targets.advantages, low=self.low, high=self.high)


def require_width(key: str, width: float, example: float) -> None:
    require(width > 0, key, width, f"a clip is a positive width around a ratio of 1; use e.g. {example}")
