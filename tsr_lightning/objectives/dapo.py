"""DAPO: GRPO for long responses."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class DAPO(PolicyGradient):
    """DAPO (https://arxiv.org/abs/2503.14476): GRPO's advantage, divided by the group's deviation (equation 9), two
    clip widths, the mean over all tokens of a step (equation 8), no loss on overlong trajectories, no KL term and no
    entropy bonus.

    Its other parts are set elsewhere: `OverlongPenalty` in `shaping` (optional, equation 13) and dynamic sampling as
    data.dynamic_sampling.

    Needs groups of two or more. For tasks with long responses, of which many groups all succeed or all fail. Departs
    from the paper: trajectories have several turns, and their tokens count together.
    """

    aggregation: Aggregation = field(default_factory=TokenMean)
    mask_truncated: bool = True
    entropy_coefficient: float = 0.0
