"""Maximum likelihood of demonstrations: an objective by itself, and a term beside a policy gradient."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.advantages import uniform
from tsr_lightning.objectives.aggregation import Aggregation, TokenMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.credit import weighted, without_critic
from tsr_lightning.objectives.schedules import ConstantSchedule, Schedule
from tsr_lightning.trajectory import Comparison, Group, Member, Origin


@dataclass(frozen=True)
class Supervised:
    """The likelihood of demonstrations: the loss gets -coefficient * sum(weight * log pi) over their tokens.

    Over an optimizer step the weights sum to 1, or to 0 where the step has no demonstration. Demonstrations have no
    policy weight, belong to no baseline and train no critic: a critic's values are those of the policy's own
    trajectories. Where the coefficient is 0 in an epoch, its demonstrations are left out altogether.

    Args:
        coefficient: the term's weight by epoch.
    """

    coefficient: Schedule = field(default_factory=ConstantSchedule)

    def at(self, epoch: int) -> "Supervised":
        """The term as it is in an epoch."""
        return Supervised(ConstantSchedule(self.coefficient(epoch)))

    @property
    def present_coefficient(self) -> float:
        """The coefficient in the epoch that `at` chose, or in epoch 0."""
        return self.coefficient(0)


def supervised_credit(credit: Credit, member: Member, aggregation: Aggregation, term: Supervised) -> Credit:
    """The credit of a demonstration under the term; that of any other trajectory is left as it is.

    Args:
        credit: of the policy gradient.
        member: to which it belongs.
        aggregation: how the tokens of the demonstrations in a step are averaged. Since a step divides by the sum of
            their weights, `Constant` is `TokenMean` here.
        term: the supervised term.
    """
    if member.origin is not Origin.DEMONSTRATED:
        return credit
    tokens = member.trained_tokens
    zeros = torch.zeros(tokens)
    weight = aggregation.weighting(tokens).weight if tokens and term.present_coefficient else 0.0
    return replace(
        credit,
        advantages=zeros,
        weights=zeros,
        normalizers=zeros,
        value_weights=zeros,
        supervised_weights=torch.full_like(zeros, weight),
    )


def with_supervised_loss(loss: Loss, targets: Targets, outputs: Outputs, term: Supervised) -> Loss:
    """The loss plus the term, weighted by `supervised_weights`."""
    weights = targets.supervised_weights
    supervised = -(weights * outputs.logprobs).sum()
    stats = {"supervised_loss": supervised.detach(), "supervised_weight": weights.sum()}
    coefficient = term.present_coefficient
    total = loss.total + coefficient * supervised if coefficient else loss.total
    return loss._replace(total=total, stats=loss.stats | stats)


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
