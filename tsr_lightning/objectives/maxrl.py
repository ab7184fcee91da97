"""Maximum-likelihood reinforcement learning."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.estimators import AdvantageEstimator
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.successes import SuccessRelative


@dataclass(frozen=True)
class MaxRL(PolicyGradient):
    """MaxRL (https://arxiv.org/abs/2602.02710): success relative to the share p of successes in the group.

        A_i = (S_i - p) / p,   S_i = 1 for a success, else 0;   0 where p is 0

    Its expectation is the gradient of a truncated series of log p, where GRPO without the division follows p: instances
    that rarely succeed count more. Departs from the paper: a success is what the environment calls one, and rewards are
    not looked at; the loss has a clipped ratio.
    """

    advantage: AdvantageEstimator = field(default_factory=SuccessRelative)
