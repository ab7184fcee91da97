"""Credits a rollout's groups, and makes the training sequences of an epoch.

Plain functions, which know no Trainer and no data module. Under several ranks each estimates a share of the tokens.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch

from tsr_lightning.batching.distinct import distinct_pieces, joined, split, summed
from tsr_lightning.batching.packing import share_out
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import (
    ToEstimate,
    TrainingSequence,
    quantities_of,
    training_sequences,
    with_credit,
)
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.objectives.base import Needs, Objective
from tsr_lightning.objectives.signal import outcomes_teach
from tsr_lightning.rng import Key
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.mismatch import computed, corrected, mismatch_metrics
from tsr_lightning.trajectory import Comparison, Group, Piece

# The policy's, critic's and reference's estimates
EstimateFn = Callable[[Sequence[ToEstimate]], list[Estimates]]


class CreditedPiece(NamedTuple):
    """A trajectory, or a turn of a search tree, with the sum of its credit."""

    piece: Piece
    credit: Credit
    estimates: Estimates


class Credited(NamedTuple):
    """Training sequences and credit of an epoch, of all ranks."""

    sequences: list[TrainingSequence]  # those with any weight, with their part of the credit
    credits: list[list[Credit]]  # of each group: one per member of its comparisons
    mismatch: dict[str, float]  # figures of engine and trainer
    pieces: list[CreditedPiece]


def credited_sequences(
    comparisons: Sequence[Sequence[Group | Comparison]],
    objective: Objective,
    estimate: EstimateFn,
    ranks: ProcessGroup,
    updates: Updates = Updates(),  # noqa: B008  (frozen)
    key: Key = Key(0),  # noqa: B008  (frozen)
) -> Credited:
    """The training sequences of groups, with credit; every rank estimates its share and returns all of them.

    Each turn of an instance's trees is estimated once and trained once, with the sum of its weights; baselines count
    each of its copies.

    Args:
        comparisons: of each group, `Objective.comparisons`.
        objective: of the epoch.
        estimate: the policy's, critic's and reference's estimates.
        ranks: that share them.
        updates: the settings.
        key: of the epoch.
    """
    parts = list(chain.from_iterable(comparisons))
    if not parts:
        return Credited([], [[] for _ in comparisons], {}, [])
    pieces, places = distinct_pieces(comparisons)
    sequences = [training_sequences(piece) for piece in pieces]
    of_trainer = computed(pieces, objective.needs, updates, key)
    asked = [ToEstimate(*pair, i in of_trainer) for i, pair in enumerate(zip(pieces, sequences, strict=True))]
    estimates = shared_estimates(asked, estimate, ranks, objective.needs)
    mismatch = mismatch_metrics(pieces, estimates, of_trainer)
    credits = objective.credit(parts, [[joined([estimates[i] for i in own]) for own in part] for part in places])

    copies: list[list[Credit]] = [[] for _ in pieces]
    teaching = [False for _ in pieces]
    for teaches, part, of_part in zip(outcomes_teach(parts, objective), places, credits, strict=True):
        for own, credit in zip(part, of_part, strict=True):
            for i, of_piece in zip(own, split(credit, [pieces[i].trained_tokens for i in own]), strict=True):
                copies[i].append(of_piece)
                teaching[i] |= teaches

    def correct(credit: Credit, i: int) -> Credit:
        if not objective.compares(pieces[i].origin):
            return credit  # what is imitated is imitated whoever would have sampled it
        return corrected(credit, pieces[i], estimates[i], updates)

    sums = [summed(each) for each in copies]
    credited = [
        sequence
        for i, tree in enumerate(_trees(comparisons, places))
        for sequence in with_credit(
            sequences[i],
            estimates[i],
            correct(sums[i], i),
            quantities_of(pieces[i], objective.needs.quantities),
            tree=tree,
            piece=i,
            teaches=teaching[i],
            observations=objective.needs.observations,
        )
    ]
    remaining = iter(credits)
    of_groups = [list(chain.from_iterable(islice(remaining, len(each)))) for each in comparisons]
    of_pieces = [CreditedPiece(*each) for each in zip(pieces, sums, estimates, strict=True)]
    return Credited(credited, of_groups, mismatch, of_pieces)


def _trees(
    comparisons: Sequence[Sequence[Group | Comparison]], places: Sequence[Sequence[Sequence[int]]]
) -> list[int | None]:
    """The number of the search trees that each piece belongs to, if it does: what is imitated beside them shares
    prefixes with its tree."""
    of_parts = [
        i if any(isinstance(part, Comparison) for part in of_group) else None
        for i, of_group in enumerate(comparisons)
        for _ in of_group
    ]
    trees = {i: tree for tree, part in zip(of_parts, places, strict=True) for own in part for i in own}
    return [trees[i] for i in range(len(trees))]


def shared_estimates(
    asked: Sequence[ToEstimate], estimate: EstimateFn, ranks: ProcessGroup, needs: Needs
) -> list[Estimates]:
    """Estimates of all pieces, in their order. Each rank computes a share of about as many tokens as the others'; a
    prefix that pieces share is computed on few of them."""
    if ranks.world_size == 1:
        return estimate(asked)
    passed = [one.sequences if one.computed or needs.reference else () for one in asked]
    shares = share_out([[sequence.inputs for sequence in sequences] for sequences in passed], ranks.world_size)
    own = [each.flat() for each in estimate([asked[i] for i in shares[ranks.rank]])]
    tokens = [one.piece.trained_tokens for one in asked]
    lengths = [(3 + needs.entropies) * count + 1 for count in tokens]
    of_rank = [sum(lengths[i] for i in share) for share in shares]
    gathered = ranks.gather_tensors(torch.cat(own) if own else torch.empty(0), of_rank)
    found = {
        i: Estimates.from_flat(numbers, tokens[i])
        for share, tensor in zip(shares, gathered, strict=True)
        for i, numbers in zip(share, tensor.split([lengths[i] for i in share]), strict=True)
    }
    return [found[i] for i in range(len(asked))]
