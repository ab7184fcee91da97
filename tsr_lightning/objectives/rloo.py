"""REINFORCE with the other trajectories of the instance as baseline."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.estimators import AdvantageEstimator, LeaveOneOut
from tsr_lightning.objectives.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class RLOO(PolicyGradient):
    """RLOO (https://arxiv.org/abs/2402.14740): a trajectory's return minus the mean return of the others.

        A_i = G / (G - 1) (R_i - mean(R))

    Departs from the paper, where a response is one action, so that the loss sums over its tokens, and without a clip:
    the ratio is clipped per token, since a rollout may have several updates, and `SequenceMean` averages, as in `GRPO`.
    `Constant` sums.
    """

    advantage: AdvantageEstimator = field(default_factory=LeaveOneOut)
