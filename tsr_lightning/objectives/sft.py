"""Supervised training on the trajectories as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.base import Credit, Estimates, Loss, Needs, Objective, Outputs, Targets
from tsr_lightning.objectives.credit import assemble, constant_advantage
from tsr_lightning.trajectory import Group, Origin, Trajectory


@dataclass(frozen=True)
class SFT(Objective):
    """Maximum likelihood of the trajectories' tokens, for a supervised warm start on demonstrations.

    Every trajectory counts, whatever its return and whoever chose it. No critic is trained.

    Args:
        aggregation: How the tokens of a step are averaged.
    """

    aggregation: Aggregation = field(default_factory=TokenMean)

    @property
    def needs(self) -> Needs:
        return Needs(logprobs=False)

    @property
    def takes_demonstrations(self) -> bool:
        return True

    def compares(self, origin: Origin) -> bool:
        return False

    def imitates(self, trajectory: Trajectory) -> bool:
        return True

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        return [
            [
                assemble(constant_advantage(1.0, trajectory.trained_tokens), self.aggregation, critic=False)
                for trajectory in group.trajectories
            ]
            for group in groups
        ]

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        """-sum weight * log pi."""
        weights = targets.weights
        total = -(weights * outputs.logprobs).sum()
        stats = {
            "policy_loss": total.detach(),
            "policy_weight": weights.sum(),
            "entropy": (weights * outputs.entropies.detach()).sum(),
        }
        return Loss(total, stats)
