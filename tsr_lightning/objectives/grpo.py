"""GRPO and its variant without normalisation: the other trajectories of the instance are the baseline."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, Constant
from tsr_lightning.objectives.estimators import AdvantageEstimator, GroupNormalised
from tsr_lightning.objectives.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class GRPO(PolicyGradient):
    """GRPO (https://arxiv.org/abs/2402.03300): a trajectory's advantage is its return relative to its group.

    These are the defaults of `PolicyGradient`. Departs from the paper: two clip widths (DAPO), no KL term unless `kl`
    is given, and an entropy bonus. `TokenMean` weights long trajectories more; where failures are longer than
    successes, negative advantages then dominate a step and the policy collapses (docs/log.md).
    """


@dataclass(frozen=True)
class DrGRPO(PolicyGradient):
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): GRPO without the two divisions that bias it.

        A_i = R_i - mean(R),   loss = mean over trajectories of (sum over tokens) / constant

    It does not divide by the standard deviation of the group, which amplifies groups of little spread, nor by a
    trajectory's own length, which makes a long failure cheaper per token than a short one. The constant is the most
    tokens that a trajectory can have. Departs from the paper: two clip widths (DAPO).
    """

    advantage: AdvantageEstimator = field(default_factory=lambda: GroupNormalised(divide_by_std=False))
    aggregation: Aggregation = field(default_factory=lambda: Constant(256))
