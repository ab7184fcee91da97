"""Group-relative policy optimisation: the other trajectories of the instance are the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tsr_lightning.objectives.advantages import group_normalised
from tsr_lightning.objectives.aggregation import Aggregation, SequenceMean
from tsr_lightning.objectives.base import Credit, Estimates, Loss, Needs, Objective, Outputs, Targets
from tsr_lightning.objectives.checks import require_clip, require_coefficient
from tsr_lightning.objectives.credit import assemble, constant_advantage, impose
from tsr_lightning.objectives.searched import SearchedCredit, Unchanged
from tsr_lightning.objectives.terms import policy_loss
from tsr_lightning.trajectory import Group, Origin, Trajectory


@dataclass(frozen=True)
class GRPO(Objective):
    """GRPO (https://arxiv.org/abs/2402.03300): no critic; a trajectory's advantage is its return against its group's.

    Departs from the paper: two clip widths (DAPO). `Constant` with `normalise_std: false` is Dr. GRPO's. `TokenMean`
    weighs long trajectories more; where failures are the longer ones, most of what a step says is then "less of this",
    and a policy falls apart (docs/log.md). Left out: GSPO's ratio of whole sequences
    (https://arxiv.org/abs/2507.18071), since a trajectory may be spread over several rows and micro-batches, and a
    loss sees one.

    Args:
        clip_low: The ratio to the policy that sampled is clipped at 1 - clip_low.
        clip_high: And at 1 + clip_high; wider than clip_low, it lets unlikely tokens grow.
        normalise_std: Whether a group's advantages are divided by the standard deviation of its returns.
        kl_coefficient: The weight of the KL divergence from the reference; 0 needs no reference.
        entropy_coefficient: The weight of the entropy bonus.
        aggregation: How the tokens of a step are averaged.
        searched: What is done with trajectories that search chose.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    normalise_std: bool = True
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.001
    aggregation: Aggregation = field(default_factory=SequenceMean)
    searched: SearchedCredit = field(default_factory=Unchanged)

    def __post_init__(self) -> None:
        require_clip("clip_low", self.clip_low, 0.2)
        require_clip("clip_high", self.clip_high, 0.28)
        require_coefficient("kl_coefficient", self.kl_coefficient)
        require_coefficient("entropy_coefficient", self.entropy_coefficient)

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.kl_coefficient > 0)

    @property
    def minimum_compared(self) -> int:
        return 2

    def compares(self, origin: Origin) -> bool:
        return self.searched.compares(origin)

    def imitates(self, trajectory: Trajectory) -> bool:
        return self.searched.imitates(trajectory)

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        return [self._group(group) for group in groups]

    def _group(self, group: Group) -> list[Credit]:
        imposed = [self.searched.imposed(trajectory) for trajectory in group.trajectories]
        pairs = list(zip(group.trajectories, imposed, strict=True))
        compared = [trajectory.episode_return for trajectory, verdict in pairs if verdict is None]
        returns = torch.tensor(compared, dtype=torch.float64)
        relative = iter(group_normalised(returns, normalise_std=self.normalise_std).tolist())
        # One whose credit is imposed takes no part in the comparison, and what stands here for it is replaced.
        own = [next(relative) if verdict is None else 0.0 for verdict in imposed]
        return [
            impose(
                assemble(constant_advantage(advantage, trajectory.trained_tokens), self.aggregation, critic=False),
                verdict,
            )
            for (trajectory, verdict), advantage in zip(pairs, own, strict=True)
        ]

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        return policy_loss(
            targets,
            outputs,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            entropy_coefficient=self.entropy_coefficient,
            kl_coefficient=self.kl_coefficient,
        )
