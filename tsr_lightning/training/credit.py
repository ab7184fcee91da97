"""Credits a rollout's groups, and makes the training sequences of an epoch.

Plain functions, which know no Trainer and no data module. Under several ranks each estimates a share of the tokens.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

from tsr_lightning.batching.distinct import distinct_pieces, joined, split, summed
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import (
    Following,
    TrainingSequence,
    quantities_of,
    training_sequences,
    with_credit,
)
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import outcomes_teach
from tsr_lightning.rng import Key
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.mismatch import corrected
from tsr_lightning.training.shared_estimates import EstimateFn, PieceEstimator
from tsr_lightning.trajectory import Comparison, Group, Origin, Piece, TreePath, Turn


class CreditedPiece(NamedTuple):
    """A trajectory, or a turn of a search tree, with the sum of its credit."""

    piece: Piece
    credit: Credit
    estimates: Estimates
    copies: tuple[Turn, ...]  # equal turns of the tree, which are trained as this one; of a trajectory its own turns


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
    following: Following | None = None,
) -> Credited:
    """The training sequences of groups, with credit; every rank estimates its share and returns all of them.

    Each turn of an instance's trees is estimated once and trained once, with the sum of its weights; baselines count
    each of its copies. Where credit reads no estimates it comes first, and what has no weight is not estimated.

    Args:
        comparisons: of each group, `Objective.comparisons`.
        objective: of the epoch.
        estimate: the policy's, critic's and reference's estimates.
        ranks: that share them.
        updates: the settings.
        key: of the epoch.
        following: gives the ids that follow a response, for an objective that trains observations
            (`Actor.following`); others need none.
    """
    if objective.needs.observations and following is None:
        raise ValueError("the objective trains observations: pass following, such as Actor.following")
    parts = list(chain.from_iterable(comparisons))
    if not parts:
        return Credited([], [[] for _ in comparisons], {}, [])
    pieces, places = distinct_pieces(comparisons)
    observes = [objective.needs.observations and piece.origin is not Origin.GREEDY for piece in pieces]
    sequences = [
        training_sequences(piece, following if observed else None)
        for piece, observed in zip(pieces, observes, strict=True)
    ]
    estimator = PieceEstimator(pieces, sequences, estimate, ranks, objective.needs, updates, key)

    def credited(estimates: Sequence[Estimates]) -> tuple[list[list[Credit]], list[Credit]]:
        of_members = [[joined([estimates[i] for i in own]) for own in part] for part in places]
        credits = objective.credit(parts, of_members)
        return credits, _of_pieces(pieces, places, credits)

    if objective.needs.estimates_in_credit:
        estimates, mismatch = estimator(frozenset(range(len(pieces))))
        credits, sums = credited(estimates)
    else:
        credits, sums = credited([Estimates.unknown(piece.trained_tokens) for piece in pieces])
        estimates, mismatch = estimator(frozenset(i for i, own in enumerate(sums) if own.weights.any()))
    teaching = {
        i
        for teaches, part in zip(outcomes_teach(parts, objective), places, strict=True)
        for i in chain.from_iterable(part)
        if teaches
    }

    def correct(credit: Credit, i: int) -> Credit:
        if not objective.compares(pieces[i].origin):
            return credit  # what is imitated is imitated whoever would have sampled it
        return corrected(credit, pieces[i], estimates[i], updates)

    trained = [
        sequence
        for i, tree in enumerate(_trees(comparisons, places))
        for sequence in with_credit(
            sequences[i],
            estimates[i],
            correct(sums[i], i),
            quantities_of(pieces[i], objective.needs.quantities),
            tree=tree,
            piece=i,
            teaches=i in teaching,
            observations=observes[i],
        )
    ]
    remaining = iter(credits)
    of_groups = [list(chain.from_iterable(islice(remaining, len(each)))) for each in comparisons]
    copies = _copies(parts, pieces, places)
    of_pieces = [CreditedPiece(*each) for each in zip(pieces, sums, estimates, copies, strict=True)]
    return Credited(trained, of_groups, mismatch, of_pieces)


def _of_pieces(
    pieces: Sequence[Piece], places: Sequence[Sequence[Sequence[int]]], credits: Sequence[Sequence[Credit]]
) -> list[Credit]:
    """The sum of the credit of each piece's copies."""
    copies: list[list[Credit]] = [[] for _ in pieces]
    for part, of_part in zip(places, credits, strict=True):
        for own, credit in zip(part, of_part, strict=True):
            for i, of_piece in zip(own, split(credit, [pieces[i].trained_tokens for i in own]), strict=True):
                copies[i].append(of_piece)
    return [summed(each) for each in copies]


def _copies(
    parts: Sequence[Group | Comparison], pieces: Sequence[Piece], places: Sequence[Sequence[Sequence[int]]]
) -> list[tuple[Turn, ...]]:
    """The turns that each piece stands for."""
    copies: list[dict[int, Turn]] = [{} for _ in pieces]  # by identity, since a turn is in the paths of many leaves
    for part, of_part in zip(parts, places, strict=True):
        for member, own in zip(part.members, of_part, strict=True):
            if isinstance(member, TreePath):
                for turn, i in zip(member.turns, own, strict=True):
                    copies[i][id(turn)] = turn
            else:
                copies[own[0]] = {id(turn): turn for turn in member.turns}
    return [tuple(each.values()) for each in copies]


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
