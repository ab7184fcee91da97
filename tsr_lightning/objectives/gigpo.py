"""Group-in-group policy optimisation: credit per turn from equal states."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.anchors import GroupInGroup
from tsr_lightning.objectives.estimators import AdvantageEstimator
from tsr_lightning.objectives.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class GiGPO(PolicyGradient):
    """GiGPO (https://arxiv.org/abs/2505.10978): a trajectory's return relative to its group, plus the return from each
    turn on relative to those of the turns that were taken in an equal state. See `anchors.GroupInGroup`.

    Departs from the paper: `SequenceMean` averages over trajectories, where the paper's equation 9 averages over turns,
    and two clip widths (DAPO).
    """

    advantage: AdvantageEstimator = field(default_factory=GroupInGroup)
