"""Returns normalised over a rollout."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from tsr_lightning.errors import require
from tsr_lightning.objectives.advantages import Advantages
from tsr_lightning.objectives.base import Needs
from tsr_lightning.objectives.estimators import AdvantageEstimator, GroupNormalised, ShapedTrajectory

_EPSILON = 1e-6  # up to this, returns count as equal


@dataclass(frozen=True)
class RolloutScaled(AdvantageEstimator):
    """Another estimator, on rewards divided by the standard deviation of the rollout's returns.

    With the default estimator, (R_i - mean of the group) / (std of the rollout + epsilon): the advantage of Lite PPO
    (https://arxiv.org/abs/2508.08221) and TRL's scale_rewards="batch". Unlike the group's own standard deviation, that
    of the rollout does not amplify groups of little spread. It is unbiased, over the compared trajectories of all
    groups that are trained on, KL penalties included.

    It is no step of reward shaping, because a step sees one trajectory. A critic learns the scaled returns; their scale
    changes from rollout to rollout, so with a critic `Scale` or `whiten` suit better.

    Args:
        estimator: what the scaled rewards are given to.
    """

    estimator: AdvantageEstimator = field(default_factory=lambda: GroupNormalised(divide_by_std=False))

    def __post_init__(self) -> None:
        remedy = "it looks at success alone, and no scaling of rewards reaches it; use it without RolloutScaled"
        require(self.estimator.uses_rewards, "RolloutScaled.estimator", self.estimator, remedy)

    @property
    def needs(self) -> Needs:
        return self.estimator.needs

    @property
    def minimum_compared(self) -> int:
        return self.estimator.minimum_compared

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        returns = [each.episode_return for group in groups for each in group if each.compared]
        std = float(torch.tensor(returns, dtype=torch.float64).std()) if len(returns) > 1 else 0.0
        scale = 1.0 / (std + _EPSILON) if std > _EPSILON else 1.0  # a critic would learn what 1 / epsilon scales
        return self.estimator([[_scaled(each, scale) for each in group] for group in groups])


def _scaled(shaped: ShapedTrajectory, scale: float) -> ShapedTrajectory:
    rewards = tuple(scale * reward for reward in shaped.rewards)
    return replace(shaped, rewards=rewards, kl_penalties=scale * shaped.kl_penalties)
