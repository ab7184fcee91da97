"""Equal responses of one state: estimated once, and trained as one sequence with the sum of their weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from tsr_lightning.batching.tensors import Credit
from tsr_lightning.trajectory import Group, Trajectory


class Distinct(NamedTuple):
    """Trajectories without the duplicates of states."""

    trajectories: list[Trajectory]
    places: list[list[int]]  # of every trajectory among these, indexed as `groups[i].trajectories[j]`


def distinct_responses(groups: Sequence[Group]) -> Distinct:
    """In a group that is a state, which has one prompt, equal responses are one; all other trajectories stay."""
    distinct = Distinct([], [])
    for group in groups:
        seen: dict[tuple[int, ...], int] = {}
        places = []
        for trajectory in group.trajectories:
            new = len(distinct.trajectories)
            place = seen.setdefault(trajectory.turns[0].response, new) if group.is_state else new
            if place == new:
                distinct.trajectories.append(trajectory)
            places.append(place)
        distinct.places.append(places)
    return distinct


def summed(credits: Sequence[Credit]) -> list[Credit]:
    """Credits of equal token ids; those that agree are one, with the sum of their weights. A loss is linear in the
    weights, so neither it nor its gradient changes. Credits that differ, as where one of two is masked, stay apart."""
    alike: list[list[Credit]] = []
    for credit in credits:
        own = next((each for each in alike if _agree(each[0], credit)), None)
        if own is None:
            alike.append([credit])
        else:
            own.append(credit)
    return [_sum(each) for each in alike]


def _agree(one: Credit, other: Credit) -> bool:
    return torch.equal(one.advantages, other.advantages) and torch.equal(one.value_targets, other.value_targets)


def _sum(credits: Sequence[Credit]) -> Credit:
    if len(credits) == 1:
        return credits[0]
    return replace(
        credits[0],
        weights=torch.stack([credit.weights for credit in credits]).sum(0),
        normalizers=torch.stack([credit.normalizers for credit in credits]).sum(0),
        value_weights=torch.stack([credit.value_weights for credit in credits]).sum(0),
        supervised_weights=torch.stack([credit.supervised_weights for credit in credits]).sum(0),
    )
