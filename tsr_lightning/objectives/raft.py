"""Reward-ranked fine-tuning (RAFT): imitates successful trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.errors import require
from tsr_lightning.objectives.aggregation import Aggregation, SequenceMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.checks import require_coefficient
from tsr_lightning.objectives.credit import imitation_credit
from tsr_lightning.objectives.kl import KL
from tsr_lightning.objectives.losses import policy_loss
from tsr_lightning.objectives.surrogates import Clipped, Surrogate
from tsr_lightning.trajectory import Comparison, Group, Member, Origin


@dataclass(frozen=True)
class RAFT(Objective):
    """RAFT++ (https://arxiv.org/abs/2504.11343): trains on the trajectories that succeeded and leaves out the others.

    Every token of a success has advantage 1, with PPO's importance ratio and clip; on the first update of a rollout,
    where the ratio is 1, the gradient is that of the likelihood (RAFT, https://arxiv.org/abs/2304.06767). It needs no
    baseline, so no critic and no group. On plain samples it is the control for methods with search; on searched
    trajectories it equals `GRPO` with `ImitateSuccesses`.

    Departs from the paper: a success is what the environment calls one, not the highest reward of a group, and the
    number of successes per instance is not fixed.

    Args:
        surrogate: The loss of a token. No advantage is negative, so a lower clip does nothing.
        kl: The term that keeps the policy near the reference; null computes no reference.
        entropy_coefficient: The weight of the entropy bonus.
        aggregation: How the tokens of a step are averaged.
    """

    surrogate: Surrogate = field(default_factory=Clipped)
    kl: KL | None = None
    entropy_coefficient: float = 0.001
    aggregation: Aggregation = field(default_factory=SequenceMean)

    takes_demonstrations = True

    def __post_init__(self) -> None:
        require_coefficient("RAFT.entropy_coefficient", self.entropy_coefficient)
        remedy = "RAFT does not use rewards, so a penalty on them does nothing; use UnbiasedK3, K3 or K2, or null"
        require(self.kl is None or not self.kl.in_rewards, "RAFT.kl", self.kl, remedy)

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.kl is not None)

    def compares(self, origin: Origin) -> bool:
        return False

    def imitates(self, member: Member) -> bool:
        return member.succeeded

    def credit(
        self, groups: Sequence[Group | Comparison], estimates: Sequence[Sequence[Estimates]]
    ) -> list[list[Credit]]:
        return imitation_credit(groups, self.imitates, self.aggregation)

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        return policy_loss(targets, outputs, self.surrogate, self.kl, self.entropy_coefficient)
