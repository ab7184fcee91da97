"""Proximal policy optimisation on multi-turn trajectories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tsr_lightning.objectives.advantages import Estimator, token_gae, turn_gae
from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.base import Credit, Estimates, Loss, Needs, Objective, Outputs, Targets
from tsr_lightning.objectives.checks import require, require_clip, require_coefficient, require_fraction
from tsr_lightning.objectives.credit import assemble, impose, regroup, whitened
from tsr_lightning.objectives.searched import SearchedCredit, Unchanged
from tsr_lightning.objectives.terms import policy_loss, value_loss
from tsr_lightning.trajectory import Group, Origin, Trajectory

ESTIMATORS: Mapping[str, Estimator] = {"token": token_gae, "turn": turn_gae}


@dataclass(frozen=True)
class PPO(Objective):
    """PPO (https://arxiv.org/abs/1707.06347) with generalised advantage estimation.

    Departs from the paper: two clip widths (DAPO), a clipped value loss (the authors' code), advantages whitened over
    the whole rollout (not per minibatch, so that the split changes nothing), k3 to a reference in the loss.

    Args:
        clip_low: The ratio to the policy that sampled is clipped at 1 - clip_low.
        clip_high: And at 1 + clip_high; wider than clip_low, it lets unlikely tokens grow.
        value_clip: The most that a value may move away from its old one before its loss stops following; null is off.
        value_coefficient: The weight of the critic's loss, half the squared error. The critic has parameters, a
            clipping norm and a step size of its own, and AdamW divides by a gradient's scale, so it matters little.
        entropy_coefficient: The weight of the entropy bonus.
        kl_coefficient: The weight of the KL divergence from the reference; 0 needs no reference.
        gamma: The discount, of a token or of a turn as `gae` says.
        lam: GAE's lambda; 1 is Monte Carlo, smaller trusts the critic more.
        gae: A step is a token (the turn's reward falls on its last one), or a turn (its tokens share one advantage).
        whiten: Whether advantages are brought to mean 0 and variance 1 over the rollout.
        bootstrap_truncated: Whether the critic's value continues a trajectory that a budget cut. Off by default: the
            budgets are shown in the observation, so a cut ends the task itself (https://arxiv.org/abs/1712.00378).
        aggregation: How the tokens of a step are averaged.
        searched: What is done with trajectories that search chose.
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
        require_clip("clip_low", self.clip_low, 0.2)
        require_clip("clip_high", self.clip_high, 0.28)
        if self.value_clip is not None:
            remedy = "a value moves by a positive width; use e.g. 0.5, or null for no clip"
            require(self.value_clip > 0, "value_clip", self.value_clip, remedy)
        require_coefficient("value_coefficient", self.value_coefficient)
        require_coefficient("entropy_coefficient", self.entropy_coefficient)
        require_coefficient("kl_coefficient", self.kl_coefficient)
        require_fraction("gamma", self.gamma)
        require_fraction("gae_lambda", self.gae_lambda)
        require(self.gae in ESTIMATORS, "gae", self.gae, f"use one of {', '.join(ESTIMATORS)}")

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
        credits = [self._own(trajectory, estimate) for trajectory, estimate in zip(trajectories, flat, strict=True)]
        imposed = [self.searched.imposed(trajectory) for trajectory in trajectories]
        if self.whiten:
            credits = whitened(credits, [verdict is None for verdict in imposed])
        return regroup(map(impose, credits, imposed), groups)

    def _own(self, trajectory: Trajectory, estimate: Estimates) -> Credit:
        continued = self.bootstrap_truncated and trajectory.truncated
        advantages = ESTIMATORS[self.gae](
            [len(turn.response) for turn in trajectory.turns],
            [turn.reward for turn in trajectory.turns],
            estimate.values,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            final_value=estimate.final_value if continued else 0.0,
        )
        return assemble(advantages, self.aggregation, critic=True)

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        policy = policy_loss(
            targets,
            outputs,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            entropy_coefficient=self.entropy_coefficient,
            kl_coefficient=self.kl_coefficient,
        )
        value = value_loss(targets, outputs, clip=self.value_clip)
        return Loss(policy.total + self.value_coefficient * value.total, policy.stats | value.stats)
