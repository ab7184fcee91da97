"""What the benchmark of tree credit counts, and the claims that are counts."""

from collections.abc import Sequence

import torch
from fakes import driver, tasks

from benchmarks.performance.tree_credit import (
    HARD,
    IMITATION,
    TREE,
    Cost,
    growth_table,
    load,
    option_table,
    repeated,
    search,
    signal,
    update,
)
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.search.strategies import Beam
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Group


def zeros(asked: Sequence[ToEstimate]) -> list[Estimates]:
    counts = [one.piece.trained_tokens for one in asked]
    return [Estimates(torch.zeros(n), torch.zeros(n), torch.zeros(n), 0.0) for n in counts]


def test_a_response_that_is_drawn_again_is_compared_again_and_not_trained_again() -> None:
    groups = [Group(t.instance, (t,)) for t in driver(keep_tree=True).run(tasks(Beam(width=2, candidates=4), 8))]
    compared = ([TREE.comparisons(group) for group in own] for own in (groups, repeated(groups, 3)))
    once, thrice = (credited_sequences(own, TREE, zeros, ProcessGroup()).sequences for own in compared)
    # A state with one candidate becomes one with three, which are worth the same and left out.
    assert [row.ids.tolist() for row in thrice] == [row.ids.tolist() for row in once]
    few, many = signal(groups, TREE), signal(repeated(groups, 3), TREE)
    assert (many.turns, many.distinct) == (3 * few.turns, few.distinct)
    assert few.distinct == len(once)


def test_tree_credit_trains_on_five_times_the_turns_that_imitation_does() -> None:
    """For the same generated tokens, on levels that are hard for the embedded policy. Sharing prefixes saves two thirds
    of the update's tokens."""
    policy = load(HARD.model)
    groups = search(HARD, policy, Beam(width=2, candidates=4), 8).groups
    tree, imitated = signal(groups, TREE), signal(groups, IMITATION)
    winners = [t for group in groups for t in group.trajectories if t.succeeded]
    assert imitated.turns == sum(len(winner.turns) for winner in winners) > 0
    assert tree.turns > tree.distinct >= 5 * imitated.turns
    updates = Updates(minibatches=1, micro_batch_tokens=100_000)
    costs = [update(groups, objective, policy, updates) for objective in (TREE, IMITATION)]
    assert [cost.sequences for cost in costs] == [tree.distinct, imitated.turns]
    assert costs[0].tokens < costs[0].unshared_tokens / 3


def test_tables_of_searches_that_compare_nothing() -> None:
    costs = {"2": Cost(0.0, 0, 0, 0), "4": Cost(0.5, 3, 40, 20)}
    assert growth_table("candidates", {"2": 0, "4": 6}, costs).splitlines()[2:] == [
        "| 2 | 0 | 0 | 0 | 0 | 0.00 | – | – | – |",
        "| 4 | 6 | 3 | 40 | 20 | 0.50 | – | – | – |",
    ]
    assert option_table(costs).splitlines()[2:] == [
        "| 2 | 0 | 0 | 0.00 | – | – |",
        "| 4 | 3 | 20 | 0.50 | – | – |",
    ]
    assert "| 1.00 | 1.00 | 1.00 |" in growth_table("candidates", {"4": 6}, {"4": costs["4"]})
