"""Finds the comparisons that may move the policy at all: regularisers and a baseline's errors alone must not.

AdamW takes a full step of whatever gradient there is, however small. Where all outcomes are equal, what is left is the
entropy bonus, the KL term and a critic's errors; so an optimizer step needs a token whose outcome says something.
"""

from collections.abc import Sequence
from statistics import pstdev

from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import MINIMUM_STD, compared_returns
from tsr_lightning.trajectory import Comparison, Group, Member


def outcomes_teach(comparisons: Sequence[Group | Comparison], objective: Objective) -> list[bool]:
    """True for each comparison of which a member is imitated or penalised, or whose outcomes differ.

    Returns are compared within a comparison, or over all of them where the baseline lies outside (a critic, the mean of
    the rollout). An objective whose advantages are 0 where outcomes are equal needs no such look at them.

    Args:
        comparisons: of a rollout, all ranks together: `Objective.comparisons` of each group.
        objective: of the epoch.
    """
    if not objective.has_advantages_without_outcomes:
        return [True] * len(comparisons)
    returns = [compared_returns(group, objective) for group in comparisons]
    if objective.minimum_compared == 1:
        differ = [_differ([value for own in returns for value in own])] * len(comparisons)
    else:
        differ = [_differ(own) for own in returns]
    return [
        (bool(own) and differs) or any(_teaches_itself(member, objective) for member in group.members)
        for group, own, differs in zip(comparisons, returns, differ, strict=True)
    ]


def _teaches_itself(member: Member, objective: Objective) -> bool:
    return objective.imitates(member) or any(objective.penalises(turn) for turn in member.turns)


def _differ(returns: Sequence[float]) -> bool:
    return len(returns) > 1 and pstdev(returns) > MINIMUM_STD
