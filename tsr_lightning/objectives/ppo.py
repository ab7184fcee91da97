"""Proximal policy optimisation on multi-turn trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.errors import require
from tsr_lightning.objectives.advantages import token_gae, turn_gae
from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.checks import require_coefficient, require_fraction, require_policy_loss_arguments
from tsr_lightning.objectives.credit import apply_override, regroup, weighted, whitened
from tsr_lightning.objectives.searched import SearchedCredit, Unchanged
from tsr_lightning.objectives.terms import policy_loss, value_loss
from tsr_lightning.trajectory import Group, Origin, Trajectory

ESTIMATORS = {"token": token_gae, "turn": turn_gae}


@dataclass(frozen=True)
class PPO(Objective):
    """PPO (https://arxiv.org/abs/1707.06347) with generalised advantage estimation.

    Departs from the paper: two clip widths (DAPO), a clipped value loss (the authors' code), advantages whitened over
    the whole rollout (not per minibatch, so that the split has no effect), k3 to a reference in the loss.

    Args:
        clip_low: The importance ratio is clipped at 1 - clip_low.
        clip_high: And at 1 + clip_high; wider than clip_low, it lets unlikely tokens grow.
        value_clip: How far a value may move from its old one before the value loss is clipped; null is off.
        value_coefficient: The weight of the critic's loss, half the squared error. The critic has its own parameters,
            clipping norm and learning rate, and AdamW divides by a gradient's scale, so it matters little.
        entropy_coefficient: The weight of the entropy bonus.
        kl_coefficient: The weight of the KL divergence from the reference; 0 needs no reference.
        gamma: The discount per step of `gae`.
        gae_lambda: GAE's lambda; 1 is Monte Carlo, smaller values rely more on the critic.
        gae: A step is a token (the turn's reward falls on its last one), or a turn (its tokens share one advantage).
        whiten: Whether advantages are scaled to mean 0 and variance 1 over the rollout.
        bootstrap_truncated: Whether the critic's value continues a trajectory that a limit truncated. Off by default:
            the limits are shown in the observation, so they are part of the task (https://arxiv.org/abs/1712.00378).
        aggregation: How the tokens of a step are averaged.
        searched: How trajectories that search selected are credited.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    value_clip: float | None = 0.5
    value_coefficient: float = 1.0
    entropy_coefficient: float = 0.001
    kl_coefficient: float = 0.0
    gamma: float = 1.0
    gae_lambda: float = 1.0
    gae: Literal["token", "turn"] = "token"
    whiten: bool = True
    bootstrap_truncated: bool = False
    aggregation: Aggregation = field(default_factory=TokenMean)
    searched: SearchedCredit = field(default_factory=Unchanged)

    def __post_init__(self) -> None:
        require_policy_loss_arguments(self)
        if self.value_clip is not None:
            remedy = "a value moves by a positive width; use e.g. 0.5, or null for no clip"
            require(self.value_clip > 0, "PPO.value_clip", self.value_clip, remedy)
        require_coefficient("PPO.value_coefficient", self.value_coefficient)
        require_fraction("PPO.gamma", self.gamma)
        require_fraction("PPO.gae_lambda", self.gae_lambda)
        require(self.gae in ESTIMATORS, "PPO.gae", self.gae, f"use one of {', '.join(ESTIMATORS)}")

    @property
    def needs(self) -> Needs:
        return Needs(values=True, final_values=self.bootstrap_truncated, reference=self.kl_coefficient > 0)

    def compares(self, origin: Origin) -> bool:
        return self.searched.compares(origin)

    def imitates(self, trajectory: Trajectory) -> bool:
        return self.searched.imitates(trajectory)

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        flat = [estimate for group in estimates for estimate in group]
        credits = [self._own_credit(*pair) for pair in zip(trajectories, flat, strict=True)]
        overrides = [self.searched.override(trajectory) for trajectory in trajectories]
        if self.whiten:
            credits = whitened(credits, [override is None for override in overrides])
        return regroup(map(apply_override, credits, overrides), groups)

    def _own_credit(self, trajectory: Trajectory, estimate: Estimates) -> Credit:
        bootstrap = self.bootstrap_truncated and trajectory.truncated
        advantages = ESTIMATORS[self.gae](
            [len(turn.response) for turn in trajectory.turns],
            [turn.reward for turn in trajectory.turns],
            estimate.values,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            final_value=estimate.final_value if bootstrap else 0.0,
        )
        return weighted(advantages, self.aggregation)

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        policy = policy_loss(targets, outputs, self)
        value, value_stats = value_loss(targets, outputs, clip=self.value_clip)
        return Loss(policy.total + self.value_coefficient * value, policy.policy_weight, policy.stats | value_stats)
