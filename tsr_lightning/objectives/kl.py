"""The KL divergence from the reference, KL(pi || ref): in the loss, or as a penalty on the rewards. Tensors are [N].

The estimators k1, k2 and k3 are those of http://joschu.net/blog/kl-approx.html.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tsr_lightning.objectives.checks import require_coefficient
from tsr_lightning.objectives.terms import k3, log_ratio


class KL(ABC):
    """A term that keeps the policy near the reference. It has a part in the loss or a part in the rewards."""

    coefficient: float

    @abstractmethod
    def loss(self, logprobs: Tensor, reference_logprobs: Tensor) -> Tensor | None:
        """Per token, without the coefficient, to be differentiated; None where the term is in the rewards."""

    def reward_penalty(self, old_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
        """What is taken off the reward of each sampled token, the coefficient included."""
        return torch.zeros_like(old_logprobs)


@dataclass(frozen=True)
class K3(KL):
    """k3 in the loss, differentiated as it stands, without importance ratio: GRPO, equation 4 of
    https://arxiv.org/abs/2402.03300.

    Its value is an unbiased estimate of KL(pi || ref), and its expected gradient that of KL(ref || pi).

    Args:
        coefficient: the term's weight.
    """

    coefficient: float = 0.001

    def __post_init__(self) -> None:
        require_coefficient("K3.coefficient", self.coefficient)

    def loss(self, logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
        return k3(log_ratio(reference_logprobs, logprobs))
