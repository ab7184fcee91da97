"""Credit of the groups of an epoch: from trajectories to the training sequences of its updates.

Plain functions, which know no Trainer and no data module. Under several ranks each estimates its share.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch

from tsr_lightning.batching.duplicates import distinct_responses, summed
from tsr_lightning.batching.packing import share_out
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import ToEstimate, TrainingSequence, training_sequences, with_credit
from tsr_lightning.batching.tensors import Credit, Estimates
from tsr_lightning.objectives.base import Needs, Objective
from tsr_lightning.objectives.step_signal import outcomes_teach
from tsr_lightning.rng import Key
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.mismatch import computed, corrected, mismatch_metrics
from tsr_lightning.trajectory import Group

# The policy's, critic's and reference's estimates of trajectories
EstimateFn = Callable[[Sequence[ToEstimate]], list[Estimates]]


class Credited(NamedTuple):
    """What the updates of an epoch are made from, of all ranks."""

    sequences: list[TrainingSequence]  # those with any weight, with their part of the credit
    credits: list[list[Credit]]  # of each group: one per trajectory of its comparisons
    mismatch: dict[str, float]  # figures of engine and trainer


def credited_sequences(
    comparisons: Sequence[Sequence[Group]],
    objective: Objective,
    estimate: EstimateFn,
    ranks: ProcessGroup,
    updates: Updates = Updates(),  # noqa: B008  (frozen)
    key: Key = Key(0),  # noqa: B008  (frozen)
) -> Credited:
    """The training sequences of groups, with credit; every rank estimates its share and returns all of them.

    Equal responses in a state are estimated once and trained once, with the sum of their weights; baselines count each.

    Args:
        comparisons: of each group, `Objective.comparisons`.
        objective: of the epoch.
        estimate: the policy's, critic's and reference's estimates.
        ranks: that share them.
        updates: the settings.
        key: of the epoch.
    """
    compared = list(chain.from_iterable(comparisons))
    if not compared:
        return Credited([], [[] for _ in comparisons], {})
    trees = [
        i if any(part.is_state for part in of_group) else None  # what is imitated shares prefixes with its tree
        for i, of_group in enumerate(comparisons)
        for _ in of_group
    ]
    trajectories, places = distinct_responses(compared)
    sequences = [training_sequences(trajectory) for trajectory in trajectories]
    of_trainer = computed(trajectories, objective.needs, updates, key)
    asked = [ToEstimate(*pair, i in of_trainer) for i, pair in enumerate(zip(trajectories, sequences, strict=True))]
    estimates = shared_estimates(asked, estimate, ranks, objective.needs)
    mismatch = mismatch_metrics(trajectories, estimates, of_trainer)
    credits = objective.credit(compared, [[estimates[place] for place in of_group] for of_group in places])

    def correct(credit: Credit, place: int) -> Credit:
        if not objective.compares(trajectories[place].origin):
            return credit  # what is imitated is imitated whoever would have sampled it
        return corrected(credit, trajectories[place], estimates[place], updates)

    teaching = outcomes_teach(compared, objective)
    credited = [
        sequence
        for tree, teaches, of_group, own in zip(trees, teaching, places, credits, strict=True)
        for place, copies in _by_place(of_group, own).items()
        for credit in summed(copies)
        for sequence in with_credit(
            sequences[place], estimates[place], correct(credit, place), tree=tree, trajectory=place, teaches=teaches
        )
    ]
    remaining = iter(credits)
    of_groups = [list(chain.from_iterable(islice(remaining, len(each)))) for each in comparisons]
    return Credited(credited, of_groups, mismatch)


def shared_estimates(
    asked: Sequence[ToEstimate], estimate: EstimateFn, ranks: ProcessGroup, needs: Needs
) -> list[Estimates]:
    """Of all trajectories, in their order. Each rank computes a share of about as many tokens as the others'; a prefix
    that trajectories share is computed on few of them."""
    if ranks.world_size == 1:
        return estimate(asked)
    passed = [one.sequences if one.computed or needs.reference else () for one in asked]
    shares = share_out([[sequence.inputs for sequence in sequences] for sequences in passed], ranks.world_size)
    own = [each.flat() for each in estimate([asked[i] for i in shares[ranks.rank]])]
    lengths = [3 * one.trajectory.trained_tokens + 1 for one in asked]
    of_rank = [sum(lengths[i] for i in share) for share in shares]
    gathered = ranks.gather_tensors(torch.cat(own) if own else torch.empty(0), of_rank)
    found = {
        i: Estimates.from_flat(numbers)
        for share, tensor in zip(shares, gathered, strict=True)
        for i, numbers in zip(share, tensor.split([lengths[i] for i in share]), strict=True)
    }
    return [found[i] for i in range(len(asked))]


def _by_place(places: Sequence[int], credits: Sequence[Credit]) -> dict[int, list[Credit]]:
    """The credits of equal trajectories together, in the order of the first of each."""
    found: dict[int, list[Credit]] = {}
    for place, credit in zip(places, credits, strict=True):
        found.setdefault(place, []).append(credit)
    return found
