"""A supervised term on demonstrations, beside a policy gradient."""

from dataclasses import dataclass, field, replace

import torch

from tsr_lightning.batching.tensors import Credit, Outputs, Targets
from tsr_lightning.objectives.aggregation import Aggregation
from tsr_lightning.objectives.base import Loss
from tsr_lightning.objectives.schedules import ConstantSchedule, Schedule
from tsr_lightning.trajectory import Member, Origin


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
