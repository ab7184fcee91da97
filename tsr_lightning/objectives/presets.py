"""The named objectives: defaults for the parts of `PolicyGradient`. docs/objectives has a page for each.

All have two clip widths (DAPO) and, unless stated, an entropy bonus and no KL term, whatever their papers have.
"""

from dataclasses import dataclass, field

from tsr_lightning.errors import require
from tsr_lightning.objectives.aggregation import Aggregation, Constant, TokenMean
from tsr_lightning.objectives.anchors import GroupInGroup
from tsr_lightning.objectives.estimators import (
    AdvantageEstimator,
    GroupNormalised,
    LeaveOneOut,
    ReturnToGo,
    SuccessRelative,
    SuccessSign,
)
from tsr_lightning.objectives.gae import TokenGAE
from tsr_lightning.objectives.losses import ValueLoss
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.searched import ImitateEverySuccess, SearchedCredit
from tsr_lightning.objectives.surrogates import ClippedWeight, Surrogate, TurnClipped


@dataclass(frozen=True)
class GRPO(PolicyGradient):
    """GRPO (https://arxiv.org/abs/2402.03300): a trajectory's advantage is its return relative to its group's.

    The defaults of `PolicyGradient`. `TokenMean` weights long trajectories more: where failures are longer than
    successes, negative advantages dominate a step and the policy collapses (docs/log.md).
    """


@dataclass(frozen=True)
class DrGRPO(PolicyGradient):
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): GRPO without the two divisions that bias it.

    Neither the standard deviation of the group's returns nor a trajectory's length scales its gradient. The constant,
    by which a trajectory's tokens are divided, is best the longest trajectory that can occur.
    """

    advantage: AdvantageEstimator = field(default_factory=lambda: GroupNormalised(divide_by_std=False))
    aggregation: Aggregation = field(default_factory=lambda: Constant(256))


@dataclass(frozen=True)
class DAPO(PolicyGradient):
    """DAPO (https://arxiv.org/abs/2503.14476), for long responses: the mean over all tokens of a step (equation 8), no
    loss on overlong trajectories, no entropy bonus.

    `OverlongPenalty` in `shaping` (equation 13) and data.dynamic_sampling are its other parts. Tokens of all turns of a
    trajectory count together.
    """

    aggregation: Aggregation = field(default_factory=TokenMean)
    mask_truncated: bool = True
    entropy_coefficient: float = 0.0


@dataclass(frozen=True)
class GSPO(PolicyGradient):
    """GSPO (https://arxiv.org/abs/2507.18071): GRPO with one importance ratio per turn, which is clipped as a whole.

    Departs from the paper: the sequence is the turn, since tokens that the policy did not sample stand between two. The
    gradient is GSPO-token's (equation 13). In the first optimizer step every ratio is 1 and it is GRPO.
    """

    surrogate: Surrogate = field(default_factory=TurnClipped)


@dataclass(frozen=True)
class CISPO(PolicyGradient):
    """CISPO (MiniMax-M1, https://arxiv.org/abs/2506.13585): GRPO's baseline, and a clipped importance ratio as a
    weight, so that no token loses its gradient to the clip.

    Departs from the paper: the upper width is GRPO's, since bounds of 2 or 5 made small policies collapse
    (docs/objectives/presets.md).
    """

    surrogate: Surrogate = field(default_factory=ClippedWeight)
    aggregation: Aggregation = field(default_factory=TokenMean)


@dataclass(frozen=True)
class RLOO(PolicyGradient):
    """RLOO (https://arxiv.org/abs/2402.14740): a trajectory's return minus the mean return of the others.

    Departs from the paper: the ratio is clipped per token, and `SequenceMean` averages where `Constant` would sum.
    """

    advantage: AdvantageEstimator = field(default_factory=LeaveOneOut)


@dataclass(frozen=True)
class ReinforcePlusPlus(PolicyGradient):
    """REINFORCE++ (https://arxiv.org/abs/2501.03262): returns to go, whitened over the tokens of the rollout, whose
    mean is the only baseline, so it needs no group.

    Departs from verl, which ends a return at the tokens of an observation and divides by the unbiased deviation.
    """

    advantage: AdvantageEstimator = field(default_factory=ReturnToGo)
    aggregation: Aggregation = field(default_factory=TokenMean)
    whiten: bool = True


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline(PolicyGradient):
    """REINFORCE++ with baseline (https://arxiv.org/abs/2501.03262): returns minus the mean of their group, whitened
    over the tokens of the rollout, so that all groups have one scale. Departs from verl as `ReinforcePlusPlus` does."""

    advantage: AdvantageEstimator = field(default_factory=lambda: GroupNormalised(divide_by_std=False))
    aggregation: Aggregation = field(default_factory=TokenMean)
    whiten: bool = True


@dataclass(frozen=True)
class ReinforceRej(PolicyGradient):
    """REINFORCE-Rej (https://arxiv.org/abs/2504.11343): advantage 1 for a success and -1 for a failure, on the
    instances where both occur. A success is what the environment calls one."""

    advantage: AdvantageEstimator = field(default_factory=SuccessSign)


@dataclass(frozen=True)
class MaxRL(PolicyGradient):
    """MaxRL (https://arxiv.org/abs/2602.02710): success relative to the share p of successes in the group, (S - p) / p.

    Its expectation is the gradient of a truncated series of log p, so instances that rarely succeed count more.
    Departs from the paper: a success is what the environment calls one, and the loss has a clipped ratio.
    """

    advantage: AdvantageEstimator = field(default_factory=SuccessRelative)


@dataclass(frozen=True)
class GiGPO(PolicyGradient):
    """GiGPO (https://arxiv.org/abs/2505.10978): GRPO's advantage, plus the return from each turn on relative to those
    of the turns that were taken in an equal state (`anchors.GroupInGroup`).

    Departs from the paper: `SequenceMean` averages over trajectories, where equation 9 averages over turns.
    """

    advantage: AdvantageEstimator = field(default_factory=GroupInGroup)


@dataclass(frozen=True)
class PPO(PolicyGradient):
    """PPO (https://arxiv.org/abs/1707.06347) with generalised advantage estimation over tokens, turns or both.

    Departs from the paper: a clipped value loss (the authors' code), and advantages whitened over the whole rollout,
    not per minibatch, so that the split has no effect.
    """

    advantage: AdvantageEstimator = field(default_factory=TokenGAE)
    aggregation: Aggregation = field(default_factory=TokenMean)
    whiten: bool = True
    critic: ValueLoss | None = field(default_factory=ValueLoss)


@dataclass(frozen=True)
class RAFT(PolicyGradient):
    """RAFT++ (https://arxiv.org/abs/2504.11343): imitates the trajectories that succeeded, and compares nothing.

    On the first update of a rollout, where the ratio is 1, its gradient is that of the likelihood (RAFT,
    https://arxiv.org/abs/2304.06767). Departs from the paper: a success is what the environment calls one, not the
    highest reward of a group.
    """

    searched: SearchedCredit = field(default_factory=ImitateEverySuccess)

    takes_demonstrations = True
    minimum_compared = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = (
            "RAFT imitates successes of any origin; for another credit use an objective that compares, such as GRPO"
        )
        require(isinstance(self.searched, ImitateEverySuccess), "RAFT.searched", self.searched, remedy)
