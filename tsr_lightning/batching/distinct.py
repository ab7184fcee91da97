"""Finds what is estimated and trained once: each trajectory, and each distinct turn of an instance's search trees."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.trajectory import Comparison, Group, Piece, State, TreePath, TreeTurn, Turn

_Key = tuple[State, tuple[int, ...], tuple[int, ...]]


class Pieces(NamedTuple):
    """The distinct pieces of what is credited."""

    pieces: list[Piece]  # in the order in which they are first met
    places: list[list[list[int]]]  # of the pieces of `parts[i].members[j]`, in the order of its turns


def distinct_pieces(parts: Sequence[Sequence[Group | Comparison]]) -> Pieces:
    """Finds the distinct pieces: a trajectory is one by itself, and equal turns of an instance's trees are one.

    Args:
        parts: what is credited of each group; `places` follows all of them, one after the other.
    """
    pieces: list[Piece] = []
    places: list[list[list[int]]] = []
    for of_group in parts:
        seen: dict[_Key, int] = {}
        for part in of_group:
            match part:
                case Group():
                    places.append([[len(pieces) + member] for member in range(len(part.trajectories))])
                    pieces.extend(part.trajectories)
                case Comparison():
                    places.append([_place_turns(path, pieces, seen) for path in part.members])
    return Pieces(pieces, places)


def _place_turns(path: TreePath, pieces: list[Piece], seen: dict[_Key, int]) -> list[int]:
    """The places of a path's turns among the pieces, to which new ones are appended."""

    def place(turn: Turn, state: State) -> int:
        found = seen.setdefault((state, turn.prompt, turn.response), len(pieces))
        if found == len(pieces):
            pieces.append(TreeTurn(turn, state))
        return found

    return [place(*pair) for pair in zip(path.turns, path.states, strict=True)]


def joined(estimates: Sequence[Estimates]) -> Estimates:
    """The estimates of a member, from those of its pieces."""
    if len(estimates) == 1:
        return estimates[0]
    return Estimates(
        torch.cat([each.logprobs for each in estimates]),
        torch.cat([each.values for each in estimates]),
        torch.cat([each.reference_logprobs for each in estimates]),
        estimates[-1].final_value,
        torch.cat([each.entropies for each in estimates]),
    )


def split(credit: Credit, lengths: Sequence[int]) -> list[Credit]:
    """The credit of each of a member's pieces, given their numbers of tokens."""
    if len(lengths) == 1:
        return [credit]
    spans = [slice(*bounds) for bounds in pairwise(accumulate(lengths, initial=0))]
    return [credit.map(itemgetter(span)) for span in spans]


def summed(credits: Sequence[Credit]) -> Credit:
    """One credit of equal tokens for several: the sums of their weights, and the means of advantages, value targets and
    further quantities under these.

    A loss is linear in the weights, so where the advantages agree neither it nor its gradient changes. Where they
    differ, as of a turn that several leaves share, the gradient is that of all of them while the importance ratio is 1;
    a clip then acts once, by the sign of the mean.
    """
    if len(credits) == 1:
        return credits[0]
    weights, value_weights = ([each.weights for each in credits], [each.value_weights for each in credits])
    return Credit(
        advantages=_mean([each.advantages for each in credits], weights),
        value_targets=_mean([each.value_targets for each in credits], value_weights),
        weights=_sum(weights),
        normalizers=_sum([each.normalizers for each in credits]),
        value_weights=_sum(value_weights),
        supervised_weights=_sum([each.supervised_weights for each in credits]),
        quantities={
            name: _mean([each.quantities[name] for each in credits], weights) for name in credits[0].quantities
        },
    )


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def _mean(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The weighted mean of each token; exactly the value where those with any weight agree, or where none has any."""
    counted = [value for value, weight in zip(values, weights, strict=True) if weight.any()] or values[:1]
    if all(torch.equal(value, counted[0]) for value in counted):
        return counted[0]
    total = _sum(weights)
    mean = _sum([value * weight for value, weight in zip(values, weights, strict=True)]) / total
    return torch.where(total == 0, values[0], mean)
