"""A policy gradient composed of its parts; the named objectives are its presets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.errors import require, require_coefficient
from tsr_lightning.objectives.aggregation import Aggregation, SequenceMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.credit import (
    apply_override,
    penalise_format,
    regroup,
    restricted_to_uncertain,
    weighted,
    whitened,
    without_critic,
)
from tsr_lightning.objectives.estimators import AdvantageEstimator, GroupNormalised, ShapedTrajectory
from tsr_lightning.objectives.kl import KL
from tsr_lightning.objectives.losses import (
    ObservationLoss,
    ValueLoss,
    policy_loss,
    with_observation_loss,
    with_value_loss,
)
from tsr_lightning.objectives.searched import LEFT_OUT, SearchedCredit, Unchanged
from tsr_lightning.objectives.shaping import RewardShaping
from tsr_lightning.objectives.supervised import Supervised, supervised_credit, with_supervised_loss
from tsr_lightning.objectives.surrogates import Clipped, Surrogate
from tsr_lightning.trajectory import Comparison, Group, Member, Origin, Turn


@dataclass(frozen=True)
class PolicyGradient(Objective):
    """Credit: shaped rewards, an advantage estimator, an aggregation. Loss: a surrogate, entropy and KL terms.

    Args:
        advantage: from the returns or the rewards of trajectories to the advantages of their tokens.
        surrogate: the loss of a token, given its importance ratio and advantage.
        aggregation: how the tokens of a step are averaged.
        searched: how trajectories that search selected are credited.
        shaping: steps from the environment's rewards to those that are credited, in order.
        whiten: whether advantages are scaled to mean 0 and variance 1 over the rollout.
        format_penalty: taken off the advantage of every token of a turn whose text could not be read, after baseline,
            whitening and `searched`, so that it moves none of them, nor the critic, the instance filter and dynamic
            sampling. The environment's own format_penalty, a part of its rewards, is then set to 0.
        mask_truncated: whether trajectories that a token limit ended (`Trajectory.overlong`) stay out of the policy
            loss, with its entropy and KL terms and normalizers: DAPO's overlong filtering, and TRL's
            mask_truncated_completions, but that TRL's normalizers keep them where `loss_type` is neither dapo nor
            cispo. Their returns stay in baseline and whitening, and the critic trains on them.
            The environment's own limit of turns masks nothing: it is part of the task, and most failures end by it.
        top_entropy_quantile: the share of a rollout's tokens, those in which the policy was least sure, that the
            surrogate trains; 1 trains all, 0.2 is the 80/20 rule of https://arxiv.org/abs/2506.01939. See
            `credit.restricted_to_uncertain`.
        kl: the term that keeps the policy near the reference; null computes no reference.
        entropy_coefficient: the weight of the entropy bonus.
        critic: the critic's loss, where the estimator needs one.
        observations: a term on the tokens of observations; null trains none.
        supervised: a supervised term on demonstrations beside the policy gradient; null takes no demonstrations.
    """

    advantage: AdvantageEstimator = field(default_factory=GroupNormalised)
    surrogate: Surrogate = field(default_factory=Clipped)
    aggregation: Aggregation = field(default_factory=SequenceMean)
    searched: SearchedCredit = field(default_factory=Unchanged)
    shaping: list[RewardShaping] = field(default_factory=list)
    whiten: bool = False
    format_penalty: float = 0.0
    mask_truncated: bool = False
    top_entropy_quantile: float = 1.0
    kl: KL | None = None
    entropy_coefficient: float = 0.001
    critic: ValueLoss | None = None
    observations: ObservationLoss | None = None
    supervised: Supervised | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_coefficient(f"{name}.entropy_coefficient", self.entropy_coefficient)
        require_coefficient(f"{name}.format_penalty", self.format_penalty)
        share = self.top_entropy_quantile
        remedy = "it is the share of tokens that are trained; use e.g. 0.2, or 1 for all"
        require(0 < share <= 1, f"{name}.top_entropy_quantile", share, remedy)
        needed, given = self.advantage.needs.values, self.critic is not None
        estimator = type(self.advantage).__name__
        remedy = f"use ValueLoss, since {estimator} needs one" if needed else f"use null, since {estimator} needs none"
        require(needed == given, f"{name}.critic", self.critic, remedy)
        if not any(map(self.compares, Origin)):
            self._require_nothing_in_the_rewards(f"{name} compares nothing")
        elif not self.advantage.uses_rewards:
            self._require_nothing_in_the_rewards(f"{estimator} looks at success alone")
        if self.needs.tree:
            self._require_values_alone()

    def _require_nothing_in_the_rewards(self, reason: str) -> None:
        name = type(self).__name__
        remedy = f"{reason}, and no shaping of rewards reaches it; use []"
        require(not self.shaping, f"{name}.shaping", self.shaping, remedy)
        remedy = f"{reason}, and no penalty on rewards reaches it; use UnbiasedK3, K3 or K2 in the loss, or null"
        require(self.kl is None or not self.kl.in_rewards, f"{name}.kl", self.kl, remedy)

    def _require_values_alone(self) -> None:
        name, credit = type(self).__name__, type(self.searched).__name__
        remedy = f"under {credit} the return of a response is its value, and no shaping of rewards reaches it; use []"
        require(not self.shaping, f"{name}.shaping", self.shaping, remedy)
        estimator = type(self.advantage).__name__
        remedy = f"under {credit} siblings are compared in their state already; use GroupNormalised or LeaveOneOut"
        require(not self.advantage.needs.state_keys, f"{name}.advantage", estimator, remedy)
        remedy = f"under {credit} a response is compared by its value, not by success alone; use GroupNormalised"
        require(self.advantage.uses_rewards, f"{name}.advantage", estimator, remedy)
        remedy = (
            f"under {credit} responses are compared in their state, and no greedy play of the instance; use LeaveOneOut"
        )
        require(not self.advantage.needs.greedy, f"{name}.advantage", estimator, remedy)
        remedy = (
            f"{credit}.target says how far a response lies above the policy, which a division by the deviation undoes; "
            "use DrGRPO, or GroupNormalised with divide_by_std: false"
        )
        keeps_size = not (self.searched.has_target and self.advantage.divides_by_spread)
        require(keeps_size, f"{name}.advantage", estimator, remedy)
        remedy = (
            f"{credit}.target says how far a response lies above the policy, which a baseline of another mean undoes; "
            "use DrGRPO, or GroupNormalised with divide_by_std: false"
        )
        keeps_mean = not (self.searched.has_target and self.advantage.baseline_counts_tokens)
        require(keeps_mean, f"{name}.advantage", estimator, remedy)
        remedy = f"{credit}.target says how far a response lies above the policy, which whitening undoes; use false"
        require(not (self.searched.has_target and self.whiten), f"{name}.whiten", True, remedy)
        remedy = f"under {credit} every response is an episode that ended; use bootstrap_truncated: false"
        require(not self.advantage.needs.final_values, f"{name}.advantage", estimator, remedy)
        remedy = f"under {credit} a response is trained in its state, and no observation follows it there; use null"
        require(self.observations is None, f"{name}.observations", self.observations, remedy)
        remedy = f"under {credit} no penalty on rewards reaches the values of later turns; use UnbiasedK3, K3 or K2"
        require(self.kl is None or not self.kl.in_rewards, f"{name}.kl", self.kl, remedy)

    @property
    def needs(self) -> Needs:
        needs = self.advantage.needs
        quantities = tuple(dict.fromkeys([*needs.quantities, *self.surrogate.quantities]))
        in_credit = needs.logprobs_in_credit or (self.kl is not None and self.kl.in_rewards)
        needs = replace(
            needs,
            demonstrated_logprobs=self.supervised is None or in_credit,
            logprobs_in_credit=in_credit,
            reference=self.kl is not None,
            entropies=needs.entropies or self.top_entropy_quantile < 1,
            quantities=quantities,
            one_update=self.surrogate.one_update,
        )
        return self.searched.needs_with(replace(needs, observations=self.observations is not None))

    @property
    def minimum_compared(self) -> int:
        return self.advantage.minimum_compared

    @property
    def takes_demonstrations(self) -> bool:
        return self.supervised is not None

    @property
    def needs_demonstrations(self) -> bool:
        return self.supervised is not None

    def at(self, epoch: int) -> "PolicyGradient":
        return self if self.supervised is None else replace(self, supervised=self.supervised.at(epoch))

    def compares(self, origin: Origin) -> bool:
        return self.searched.compares(origin)

    def imitates(self, member: Member) -> bool:
        if self.supervised is not None and member.origin is Origin.DEMONSTRATED:
            return self.supervised.present_coefficient > 0
        return self.searched.imitates(member) and not self.masks(member)

    def masks(self, member: Member) -> bool:
        return self.mask_truncated and member.overlong

    @property
    def has_advantages_without_outcomes(self) -> bool:
        return self.needs.values or self.whiten or (self.kl is not None and self.kl.in_rewards)

    def penalises(self, turn: Turn) -> bool:
        return self.format_penalty > 0 and not turn.valid

    def return_of(self, member: Member) -> float:
        return self.advantage.return_of(member, self._rewards(member))

    def outcome_of(self, member: Member) -> float:
        return self.advantage.outcome_of(member, self._rewards(member))

    @property
    def comparison_settings(self) -> dict[str, object]:
        default = {each.name: each.default for each in fields(self)}["whiten"]
        settings = {
            "shaping": [type(step).__name__ for step in self.shaping],
            "whiten": self.whiten and default is not True,
            "kl": type(self.kl).__name__ if self.kl is not None and self.kl.in_rewards else None,
        }
        return {name: value for name, value in settings.items() if value}

    @property
    def comparing_part(self) -> str:
        return type(self.searched).__name__

    def comparisons(self, group: Group) -> list[Group | Comparison]:
        return self.searched.comparisons(group, self.minimum_compared)

    def credit(
        self, groups: Sequence[Group | Comparison], estimates: Sequence[Sequence[Estimates]]
    ) -> list[list[Credit]]:
        shaped = [
            [self._shaped(*pair) for pair in zip(group.members, own, strict=True)]
            for group, own in zip(groups, estimates, strict=True)
        ]
        credits = [
            weighted(each, self.aggregation, group.weight)
            for group, advantages in zip(groups, self.advantage(shaped), strict=True)
            for each in advantages
        ]
        if self.critic is None:
            credits = [without_critic(credit) for credit in credits]
        if self.whiten:
            credits = whitened(credits, [each.compared for group in shaped for each in group])
        members = [member for group in groups for member in group.members]
        # The critic estimates what the policy reaches, which selected successes beside its samples would raise. Where a
        # rollout has searches alone it learns what these reach.
        learns_values = not self.needs.tree and not any(each.compared for group in shaped for each in group)
        finished = [self._finished(*pair, learns_values) for pair in zip(credits, members, strict=True)]
        if self.top_entropy_quantile < 1:
            entropies = [each.entropies for own in estimates for each in own]
            finished = restricted_to_uncertain(finished, entropies, self.top_entropy_quantile)
        return regroup(finished, groups)

    def _finished(self, credit: Credit, member: Member, learns_values: bool) -> Credit:
        """The credit with all that neither baseline nor whitening sees.

        Args:
            credit: by estimator and aggregation.
            member: that it belongs to.
            learns_values: whether the critic trains on a member that is not compared.
        """
        searched = self.searched.override(member)
        if searched is not None and not learns_values:
            credit = without_critic(credit)
        override = LEFT_OUT if self.masks(member) else searched
        finished = penalise_format(apply_override(credit, override), member, self.format_penalty)
        if self.supervised is None:
            return finished
        return supervised_credit(finished, member, self.aggregation, self.supervised)

    def _rewards(self, member: Member) -> Sequence[float]:
        """[T] after shaping."""
        rewards: Sequence[float] = member.rewards
        for step in self.shaping:
            rewards = step(rewards, member)
        return rewards

    def _shaped(self, member: Member, estimates: Estimates) -> ShapedTrajectory:
        penalties = torch.zeros_like(estimates.logprobs)
        if self.kl is not None:
            penalties = self.kl.reward_penalty(estimates.logprobs, estimates.reference_logprobs)
        return ShapedTrajectory(
            member,
            estimates,
            rewards=tuple(self._rewards(member)),
            kl_penalties=penalties,
            compared=self.searched.override(member) is None,
        )

    def loss(self, targets: Targets, outputs: Outputs) -> Loss:
        loss = policy_loss(targets, outputs, self.surrogate, self.kl, self.entropy_coefficient)
        if self.critic is not None:
            loss = with_value_loss(loss, targets, outputs, self.critic)
        if self.observations is not None:
            loss = with_observation_loss(loss, targets, outputs, self.observations)
        if self.supervised is not None:
            loss = with_supervised_loss(loss, targets, outputs, self.supervised)
        return loss
