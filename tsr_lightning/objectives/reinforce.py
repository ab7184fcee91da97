"""REINFORCE++ and REINFORCE-Rej: policy gradients without a critic whose baseline, if any, is simple."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.estimators import AdvantageEstimator, GroupNormalised, ReturnToGo
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.successes import SuccessSign


@dataclass(frozen=True)
class ReinforcePlusPlus(PolicyGradient):
    """REINFORCE++ (https://arxiv.org/abs/2501.03262): returns to go, whitened over the tokens of the rollout.

        R_t = sum_k gamma^k r_{t+k},   A_t = (R_t - mean(R)) / std(R)

    The rollout's mean is the only baseline, so it needs no group. Departs from verl, which ends a return at the tokens
    of an observation, so that a turn would see its own reward alone, and divides by the unbiased deviation. Departs
    from the paper: no KL penalty by default.
    """

    advantage: AdvantageEstimator = field(default_factory=ReturnToGo)
    aggregation: Aggregation = field(default_factory=TokenMean)
    whiten: bool = True


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline(PolicyGradient):
    """REINFORCE++ with baseline (https://arxiv.org/abs/2501.03262): returns minus the mean of their group, whitened
    over the tokens of the rollout.

        A_i = (R_i - mean_group(R)) / std_rollout(R - mean_group(R))

    Unlike `GRPO`, it has one scale for all groups. Departs from the paper: no KL term by default; and from verl, which
    divides by the unbiased deviation.
    """

    advantage: AdvantageEstimator = field(default_factory=lambda: GroupNormalised(divide_by_std=False))
    aggregation: Aggregation = field(default_factory=TokenMean)
    whiten: bool = True


@dataclass(frozen=True)
class ReinforceRej(PolicyGradient):
    """REINFORCE-Rej (https://arxiv.org/abs/2504.11343): successes are made more likely and failures less, on the
    instances where both occur.

        A_i = 1 for a success, -1 for a failure; groups that all succeeded or all failed are left out

    Departs from the paper: a success is what the environment calls one.
    """

    advantage: AdvantageEstimator = field(default_factory=SuccessSign)
