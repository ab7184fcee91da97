"""Group-relative policy optimisation: the other trajectories of the instance are the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.advantages import group_normalised
from tsr_lightning.objectives.aggregation import Aggregation, SequenceMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.checks import require_policy_loss_arguments
from tsr_lightning.objectives.credit import outcome_credit
from tsr_lightning.objectives.searched import SearchedCredit, Unchanged
from tsr_lightning.objectives.terms import policy_loss
from tsr_lightning.trajectory import Group, Origin, Trajectory


@dataclass(frozen=True)
class GRPO(Objective):
    """GRPO (https://arxiv.org/abs/2402.03300): no critic; a trajectory's advantage is its return relative to its group.

    Departs from the paper: two clip widths (DAPO). `Constant` with `normalise_std: false` is Dr. GRPO. `TokenMean`
    weights long trajectories more; where failures are longer than successes, negative advantages then dominate a step
    and the policy collapses (docs/log.md). Left out: GSPO's sequence-level ratio (https://arxiv.org/abs/2507.18071),
    since a trajectory may be split over several sequences and micro-batches, and a loss sees only one.

    Args:
        clip_low: The importance ratio is clipped at 1 - clip_low.
        clip_high: And at 1 + clip_high; wider than clip_low, it lets unlikely tokens grow.
        normalise_std: Whether a group's advantages are divided by the standard deviation of its returns.
        kl_coefficient: The weight of the KL divergence from the reference; 0 needs no reference.
        entropy_coefficient: The weight of the entropy bonus.
        aggregation: How the tokens of a step are averaged.
        searched: How trajectories that search selected are credited.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    normalise_std: bool = True
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.001
    aggregation: Aggregation = field(default_factory=SequenceMean)
    searched: SearchedCredit = field(default_factory=Unchanged)

    minimum_compared = 2

    def __post_init__(self) -> None:
        require_policy_loss_arguments(self)

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.kl_coefficient > 0)

    def compares(self, origin: Origin) -> bool:
        return self.searched.compares(origin)

    def imitates(self, trajectory: Trajectory) -> bool:
        return self.searched.imitates(trajectory)

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        advantages_of = partial(group_normalised, normalise_std=self.normalise_std)
        return outcome_credit(groups, advantages_of, self.searched, self.aggregation)

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        return policy_loss(targets, outputs, self)
