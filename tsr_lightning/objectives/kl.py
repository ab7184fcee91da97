"""The KL divergence from the reference, KL(pi || ref): in the loss, or as a penalty on the rewards. Tensors are [N].

The estimators k1, k2 and k3 are those of http://joschu.net/blog/kl-approx.html.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tsr_lightning.errors import require_coefficient
from tsr_lightning.objectives.terms import k2, k3, log_ratio


@dataclass(frozen=True)
class KL(ABC):
    """A term that keeps the policy near the reference. It has a part in the loss or a part in the rewards.

    Args:
        coefficient: the term's weight; in the rewards, the penalty of a token per nat.
    """

    in_rewards: ClassVar[bool] = False
    coefficient: float = 0.001

    def __post_init__(self) -> None:
        require_coefficient(f"{type(self).__name__}.coefficient", self.coefficient)

    @abstractmethod
    def loss(self, logprobs: Tensor, reference_logprobs: Tensor, log_ratios: Tensor) -> Tensor:
        """Per token, without the coefficient, to be differentiated; zeros where the term is in the rewards.

        Args:
            logprobs: [N] log pi.
            reference_logprobs: [N].
            log_ratios: [N] log(pi / pi_old), limited so that the exponential is finite.
        """

    def reward_penalty(self, old_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
        """Penalties [N] taken off the rewards of the sampled tokens, the coefficient included."""
        return torch.zeros_like(old_logprobs)


@dataclass(frozen=True)
class K1Reward(KL):
    """k1 in the rewards: coefficient * (log pi_old - log pi_ref) is taken off the reward of each sampled token, as in
    InstructGPT (https://arxiv.org/abs/2203.02155).

    The penalty is part of the return that the policy gradient maximises, so its expected gradient is that of
    KL(pi || ref) over whole trajectories; a token's part in the KL of those after it counts too (within its turn only,
    under `BilevelGAE`). It needs no gradient of its own and goes with critics and with the baselines of groups, which
    then compare penalised returns.
    """

    in_rewards = True

    def loss(self, logprobs: Tensor, reference_logprobs: Tensor, log_ratios: Tensor) -> Tensor:
        return torch.zeros_like(logprobs)

    def reward_penalty(self, old_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
        return self.coefficient * (old_logprobs - reference_logprobs)


@dataclass(frozen=True)
class K2(KL):
    """k2 in the loss: half the squared log ratio of policy and reference, without importance ratio.

    Its value is biased, and its expected gradient is that of KL(pi || ref): section 4 of
    https://arxiv.org/abs/2510.01555.
    """

    def loss(self, logprobs: Tensor, reference_logprobs: Tensor, log_ratios: Tensor) -> Tensor:
        return k2(log_ratio(reference_logprobs, logprobs))


@dataclass(frozen=True)
class K3(KL):
    """k3 in the loss, differentiated as it stands, without importance ratio: GRPO, equation 4 of
    https://arxiv.org/abs/2402.03300.

    Its value is an unbiased estimate of KL(pi || ref), and its expected gradient that of KL(ref || pi).
    """

    def loss(self, logprobs: Tensor, reference_logprobs: Tensor, log_ratios: Tensor) -> Tensor:
        return k3(log_ratio(reference_logprobs, logprobs))


@dataclass(frozen=True)
class UnbiasedK3(KL):
    """The value of k3 with the gradient of k2, without importance ratio: verl's `k3+`
    (`kl_penalty` in https://github.com/volcengine/verl/blob/main/verl/trainer/ppo/core_algos.py).

    Both the value and the expected gradient are those of KL(pi || ref), exactly so on the first update of a rollout,
    where the samples are the policy's own.
    """

    def loss(self, logprobs: Tensor, reference_logprobs: Tensor, log_ratios: Tensor) -> Tensor:
        to_reference = log_ratio(reference_logprobs, logprobs)
        gradient = k2(to_reference)
        return k3(to_reference.detach()) + gradient - gradient.detach()


@dataclass(frozen=True)
class CorrectedK3(KL):
    """k3 times the importance ratio pi / pi_old, which is differentiated too: DeepSeek-V3.2
    (https://arxiv.org/abs/2512.02556), TRL's default (`use_bias_correction_kl`).

    Both the value and the expected gradient are those of KL(pi || ref), in every update of a rollout. A token that the
    policy has come to prefer by far counts as often as its ratio says, so the term varies more the further it moves.
    """

    def loss(self, logprobs: Tensor, reference_logprobs: Tensor, log_ratios: Tensor) -> Tensor:
        return log_ratios.exp() * k3(log_ratio(reference_logprobs, logprobs))
