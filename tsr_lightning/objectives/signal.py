"""Finds the groups, and the comparisons of a step, that an objective can learn from: one definition for the instance
filter, dynamic sampling and updates."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, pstdev
from typing import NamedTuple

from tsr_lightning.objectives.base import Objective
from tsr_lightning.trajectory import Comparison, Group, Member, Origin

MINIMUM_STD = 1e-6  # up to this standard deviation returns count as equal, since they may differ by rounding


def compared_returns(group: Group | Comparison, objective: Objective) -> list[float]:
    """Returns that the objective compares with one another: after reward shaping, without a KL penalty."""
    return [objective.return_of(member) for member in group.members if objective.compares(member.origin)]


def _compared_outcomes(group: Group | Comparison, objective: Objective) -> list[float]:
    return [objective.outcome_of(member) for member in group.members if objective.compares(member.origin)]


class Compared(NamedTuple):
    """A group with its comparisons under an objective, which cost as much as their tree is large."""

    group: Group
    parts: list[Group | Comparison]  # `Objective.comparisons`
    objective: Objective

    @classmethod
    def of(cls, group: Group, objective: Objective) -> "Compared":
        return cls(group, objective.comparisons(group), objective)

    @property
    def is_compared(self) -> bool:
        """True if anything in it is compared: trajectories, or under tree credit the responses in a state."""
        return any(compared_returns(part, self.objective) for part in self.parts)

    @property
    def is_imitated(self) -> bool:
        """True if a member is imitated."""
        return any(self.objective.imitates(member) for part in self.parts for member in part.members)

    @property
    def std(self) -> float:
        """The population standard deviation of the compared returns: 0 where there are fewer than two. Under tree
        credit the largest of its states'. Where the baseline is greedy play, the root mean square of the differences
        from that."""
        return max((_std(part, self.objective) for part in self.parts), default=0.0)

    def has_signal(self, minimum_std: float = MINIMUM_STD) -> bool:
        """True if the policy's terms can learn something from a group: a member is imitated, or one is compared and
        not masked, and the compared returns differ, as they are or discounted, or from that of greedy play where it is
        the baseline. They need not differ where the baseline lies outside the group (a
        critic's value, the mean of the rollout): three failures then have an advantage as one has, and leaving them
        out would bias baseline and critic by the groups that are kept.

        Such a baseline is known after the rollout alone. Where it equals the return of every trajectory, as the mean
        of a rollout of failures does, all advantages are 0 and the groups teach nothing after all.

        DAPO asks for 0 < successes < G. Where returns are 0 or 1 that is the same, and where rewards are dense, a group
        without a success can teach too. A critic and a format penalty may learn from groups without signal.
        """
        return self.is_imitated or any(_has_compared_signal(part, self.objective, minimum_std) for part in self.parts)

    def is_uniform(self, minimum_std: float = MINIMUM_STD) -> bool:
        """True if a filter by spread has no reason to keep a group: it has no signal, or none of it is imitated and
        several returns are compared, which are all equal, and equal to that of greedy play where it is the baseline.
        Under a critic such a group has signal all the same."""
        several = any(len(compared_returns(part, self.objective)) > 1 for part in self.parts)
        return not self.has_signal(minimum_std) or (several and not self.is_imitated and self.std <= minimum_std)


def has_signal(group: Group, objective: Objective, minimum_std: float = MINIMUM_STD) -> bool:
    """True if a group has signal: see `Compared.has_signal`."""
    return Compared.of(group, objective).has_signal(minimum_std)


def _std(group: Group | Comparison, objective: Objective) -> float:
    returns = compared_returns(group, objective)
    if objective.needs.greedy:
        greedy = [objective.return_of(member) for member in group.members if member.origin is Origin.GREEDY]
        return max((_root_mean_square([value - baseline for value in returns]) for baseline in greedy), default=0.0)
    return pstdev(returns) if returns else 0.0


def _has_compared_signal(group: Group | Comparison, objective: Objective, minimum_std: float) -> bool:
    compared = [member for member in group.members if objective.compares(member.origin)]
    if all(objective.masks(member) for member in compared):
        return False
    outcomes = _compared_outcomes(group, objective)
    if objective.needs.greedy:
        return _differ_from_greedy(group, outcomes, objective, minimum_std)
    has_outer_baseline = objective.minimum_compared == 1
    return has_outer_baseline or _std(group, objective) > minimum_std or _differ(outcomes)


def outcomes_teach(comparisons: Sequence[Group | Comparison], objective: Objective) -> list[bool]:
    """True for each comparison of which a member is imitated or penalised, or whose outcomes differ.

    Returns, discounted as credit does, are compared within a comparison, with that of greedy play where it is the
    baseline, or over all of them where the baseline lies outside (a critic, the mean of the rollout). An objective
    whose advantages are 0 where outcomes are equal needs no such look at them.

    AdamW takes a full step of whatever gradient there is, however small. Where all outcomes are equal, what is left is
    the entropy bonus, the KL term and a critic's errors; so an optimizer step needs a token whose outcome says more.

    Args:
        comparisons: of a rollout, all ranks together: `Objective.comparisons` of each group.
        objective: of the epoch.
    """
    if not objective.has_advantages_without_outcomes:
        return [True] * len(comparisons)
    returns = [_compared_outcomes(group, objective) for group in comparisons]
    if objective.needs.greedy:
        differ = [_differ_from_greedy(group, own, objective) for group, own in zip(comparisons, returns, strict=True)]
    elif objective.minimum_compared == 1:
        differ = [_differ([value for own in returns for value in own])] * len(comparisons)
    else:
        differ = [_differ(own) for own in returns]
    return [
        (bool(own) and differs) or any(_teaches_itself(member, objective) for member in group.members)
        for group, own, differs in zip(comparisons, returns, differ, strict=True)
    ]


def _teaches_itself(member: Member, objective: Objective) -> bool:
    return objective.imitates(member) or any(objective.penalises(turn) for turn in member.turns)


def _differ_from_greedy(
    group: Group | Comparison, returns: Sequence[float], objective: Objective, minimum: float = MINIMUM_STD
) -> bool:
    greedy = [objective.outcome_of(member) for member in group.members if member.origin is Origin.GREEDY]
    return any(abs(value - baseline) > minimum for baseline in greedy for value in returns)


def _differ(returns: Sequence[float]) -> bool:
    return len(returns) > 1 and pstdev(returns) > MINIMUM_STD


def _root_mean_square(values: Sequence[float]) -> float:
    return sqrt(fmean(value**2 for value in values)) if values else 0.0
