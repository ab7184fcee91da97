"""Supervised fine-tuning on the trajectories as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.advantages import uniform
from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.credit import weighted, without_critic
from tsr_lightning.trajectory import Comparison, Group, Member, Origin


@dataclass(frozen=True)
class SFT(Objective):
    """Maximum likelihood of the trajectories' sampled tokens, for a supervised warm start on demonstrations.

    Every trajectory counts, whatever its return and origin. No critic is trained.

    Args:
        aggregation: How the tokens of a step are averaged.
    """

    aggregation: Aggregation = field(default_factory=TokenMean)

    needs = Needs(logprobs=False)
    takes_demonstrations = True

    def compares(self, origin: Origin) -> bool:
        return False

    def imitates(self, member: Member) -> bool:
        return True

    def credit(
        self, groups: Sequence[Group | Comparison], estimates: Sequence[Sequence[Estimates]]
    ) -> list[list[Credit]]:
        def credit(member: Member) -> Credit:
            return without_critic(weighted(uniform(member.trained_tokens, 1.0), self.aggregation))

        return [[credit(member) for member in group.members] for group in groups]

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        """-sum weight * log pi."""
        weights = targets.weights
        total = -(weights * outputs.logprobs).sum()
        entropy = (weights * outputs.entropies.detach()).sum()
        return Loss(total, weights.sum(), {"policy_loss": total.detach(), "entropy": entropy})
