"""Reward-ranked fine-tuning (RAFT): imitates successful trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tsr_lightning.objectives.aggregation import Aggregation, SequenceMean
from tsr_lightning.objectives.base import Credit, Estimates, Loss, Needs, Objective, Outputs, Targets
from tsr_lightning.objectives.checks import require_clip, require_coefficient
from tsr_lightning.objectives.credit import assemble, constant_advantage, impose
from tsr_lightning.objectives.searched import LEFT_OUT
from tsr_lightning.objectives.terms import policy_loss
from tsr_lightning.trajectory import Group, Origin, Trajectory


@dataclass(frozen=True)
class RAFT(Objective):
    """RAFT++ (https://arxiv.org/abs/2504.11343): trains on the trajectories that succeeded and leaves out the others.

    Every token of a success has advantage 1, under the importance ratio and clip of PPO; on the first update of a
    rollout, where the ratio is 1, the gradient is that of the likelihood (RAFT, https://arxiv.org/abs/2304.06767).
    No baseline, so no critic and no group. With plain samples it is the control that a searched recipe has to beat;
    with searched ones it is what `GRPO` makes of them under `ImitateSuccesses`.

    Departs from the paper: a success is what the environment calls one, not the highest reward of a group, and no
    number of successes per instance is fixed.

    Args:
        clip_high: The ratio to the policy that sampled is clipped at 1 + clip_high. Nothing is pushed down, so there is
            no lower clip.
        kl_coefficient: The weight of the KL divergence from the reference; 0 needs no reference.
        entropy_coefficient: The weight of the entropy bonus.
        aggregation: How the tokens of a step are averaged.
    """

    clip_high: float = 0.28
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.001
    aggregation: Aggregation = field(default_factory=SequenceMean)

    def __post_init__(self) -> None:
        require_clip("clip_high", self.clip_high, 0.28)
        require_coefficient("kl_coefficient", self.kl_coefficient)
        require_coefficient("entropy_coefficient", self.entropy_coefficient)

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.kl_coefficient > 0)

    @property
    def takes_demonstrations(self) -> bool:
        return True

    def compares(self, origin: Origin) -> bool:
        return False

    def imitates(self, trajectory: Trajectory) -> bool:
        return trajectory.succeeded

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        return [[self._credit(trajectory) for trajectory in group.trajectories] for group in groups]

    def _credit(self, trajectory: Trajectory) -> Credit:
        whole = assemble(constant_advantage(1.0, trajectory.trained_tokens), self.aggregation, critic=False)
        return whole if self.imitates(trajectory) else impose(whole, LEFT_OUT)

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        return policy_loss(
            targets,
            outputs,
            clip_low=self.clip_high,  # acts on negative advantages alone, of which there are none
            clip_high=self.clip_high,
            entropy_coefficient=self.entropy_coefficient,
            kl_coefficient=self.kl_coefficient,
        )
