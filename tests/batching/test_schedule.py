"""Optimizer steps: every sequence is trained once per pass, whatever the micro-batches and ranks."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tsr_lightning.batching.schedule import Batch, Updates, micro_batches, schedule
from tsr_lightning.batching.sequences import TrainingSequence
from tsr_lightning.batching.tensors import Targets
from tsr_lightning.rng import Key


def credited(lengths: list[tuple[int, int]]) -> list[TrainingSequence]:
    """Sequences of (prompt, response) lengths with various weights; the first id and most targets are the index."""
    sequences = []
    for index, (prompt, response) in enumerate(lengths):
        ids = torch.cat([torch.tensor([index]), torch.ones(prompt + response - 1, dtype=torch.int64)])
        mask = torch.arange(prompt + response) >= prompt
        column = torch.full((response,), float(index))
        weights = torch.full((response,), 0.5 + index % 3)
        targets = Targets(
            column, column, column, column, column, weights, 2 * weights, 3 * weights, column, 4 * weights
        )
        sequences.append(TrainingSequence(ids, mask, column, targets, normalizers=weights.clone()))
    return sequences


def weights_of(batch: Batch) -> list[tuple[int, list[float]]]:
    """The index and the weights of each sequence of a batch."""
    pairs = zip(batch.targets.old_logprobs.tolist(), batch.targets.weights.tolist(), strict=True)
    return [(int(index), [weight for _, weight in own]) for index, own in groupby(pairs, key=itemgetter(0))]


def trained(batch: Batch) -> list[int]:
    """The indices of the sequences that have weight."""
    return [index for index, weights in weights_of(batch) if any(weights)]


def dummies(batch: Batch) -> list[int]:
    """The indices of the sequences that have none."""
    return [index for index, weights in weights_of(batch) if not any(weights)]


def contents(batches: Iterable[Batch]) -> list[tuple[int, list[float]]]:
    """Every sequence that has weight, with its weights: what defines an optimizer step, however it is split."""
    return sorted((index, weights) for batch in batches for index, weights in weights_of(batch) if any(weights))


def flat(plan: list[list[list[Batch]]]) -> list[Batch]:
    return [batch for steps in plan for step in steps for batch in step]


def scheduled(
    sequences: list[TrainingSequence], updates: Updates, ranks: int, at_least: int = 1, key: int = 1
) -> list[list[list[Batch]]]:
    """[rank][step][micro-batch]."""
    return [schedule(sequences, updates, Key(key), rank=rank, ranks=ranks, at_least=at_least) for rank in range(ranks)]


SEQUENCES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=24).map(credited)
UPDATES = st.builds(
    Updates, st.integers(1, 3), st.integers(1, 5), st.integers(1, 120), min_trajectories=st.integers(1, 5)
)
RANKS = st.integers(1, 3)
AT_LEAST = st.integers(1, 3)


@given(SEQUENCES, UPDATES, RANKS, AT_LEAST)
def test_every_sequence_is_trained_once_per_pass(
    sequences: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """Over the steps, micro-batches and ranks of a pass."""
    plan = scheduled(sequences, updates, ranks, at_least)
    steps = max(1, min(updates.minibatches, len(sequences) // updates.min_trajectories))
    for of_rank in plan:
        assert len(of_rank) == updates.epochs * steps
    for epoch in range(updates.epochs):
        span = slice(epoch * steps, (epoch + 1) * steps)
        seen = Counter(
            index for of_rank in plan for step in of_rank[span] for batch in step for index in trained(batch)
        )
        assert seen == Counter(range(len(sequences)))


@given(SEQUENCES, UPDATES, RANKS, AT_LEAST)
def test_the_weights_of_a_step_sum_to_one(
    sequences: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """Across its micro-batches and ranks, for policy and value loss; proportions are kept."""
    for step in zip(*scheduled(sequences, updates, ranks, at_least), strict=True):
        targets = [batch.targets for batch in chain.from_iterable(step)]
        weights = torch.cat([part.weights for part in targets])
        assert weights.sum().item() == pytest.approx(1, abs=1e-5)
        assert sum(part.value_weights.sum().item() for part in targets) == pytest.approx(1, abs=1e-5)
        original = torch.cat([part.old_logprobs for part in targets]) % 3 + 0.5  # as in `credited`
        assert_proportional(weights, original)


def assert_proportional(weights: Tensor, original: Tensor) -> None:
    positive = weights > 0
    ratios = weights[positive] / original[positive]
    assert torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=1e-5)


@given(SEQUENCES, UPDATES)
def test_the_number_of_ranks_does_not_change_the_steps(sequences: list[TrainingSequence], updates: Updates) -> None:
    """The sequences of each optimizer step and their weights are the same for 1, 2 and 3 ranks."""
    steps = [
        [contents(chain.from_iterable(step)) for step in zip(*scheduled(sequences, updates, ranks), strict=True)]
        for ranks in (1, 2, 3)
    ]
    assert steps[0] == steps[1] == steps[2]


@given(SEQUENCES, UPDATES, RANKS, AT_LEAST)
def test_all_ranks_have_the_same_number_of_micro_batches_in_every_step(
    sequences: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """So that no rank waits for a gradient that never comes; only the last of a step is marked as such."""
    plan = scheduled(sequences, updates, ranks, at_least)
    counts = {len(step) for steps in plan for step in steps}
    assert len(counts) == 1
    assert counts.pop() >= at_least
    for step in chain.from_iterable(plan):
        assert [batch.is_last_micro_batch for batch in step] == [False] * (len(step) - 1) + [True]
        assert all(len(batch.packed) for batch in step)


@given(SEQUENCES, UPDATES, RANKS, AT_LEAST)
def test_micro_batches_stay_within_the_token_limit(
    sequences: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """Only a longer sequence exceeds it, alone. What fits is not split."""
    batches = flat(scheduled(sequences, updates, ranks, at_least))
    assert all(len(batch.packed) <= updates.micro_batch_tokens or len(weights_of(batch)) == 1 for batch in batches)
    ample = Updates(updates.epochs, updates.minibatches, sum(map(len, sequences)))
    assert {len(step) for steps in scheduled(sequences, ample, ranks, at_least) for step in steps} == {at_least}


@given(SEQUENCES, UPDATES, RANKS)
def test_a_dummy_sequence_fills_missing_micro_batches(
    sequences: list[TrainingSequence], updates: Updates, ranks: int
) -> None:
    """It has no weight for either loss, and is a sequence of the rollout, so that it runs like any other."""
    for step in chain.from_iterable(scheduled(sequences, updates, ranks, at_least=3)):
        for batch in step:
            for index in dummies(batch):
                assert index in range(len(sequences))
                assert len(weights_of(batch)) == 1
                assert not batch.targets.value_weights.any()


def test_one_sequence_on_three_ranks_is_trained_by_one() -> None:
    plan = scheduled(credited([(3, 2)]), Updates(1, 4, 100), ranks=3)
    assert sorted(trained(batch) for batch in flat(plan)) == [[], [], [0]]
    assert [len(batch.packed) for batch in flat(plan)] == [4] * 3  # the last sampled id is only a target


@given(SEQUENCES, UPDATES)
def test_the_key_determines_the_shuffle(sequences: list[TrainingSequence], updates: Updates) -> None:
    one, again = (scheduled(sequences, updates, 2) for _ in range(2))
    assert contents(flat(one)) == contents(flat(again))
    assert [[trained(b) for b in step] for step in one[0]] == [[trained(b) for b in step] for step in again[0]]


def test_passes_and_keys_shuffle_differently() -> None:
    sequences = credited([(2, 2)] * 24)
    steps = [[sorted(trained(batch)) for batch in step] for step in scheduled(sequences, Updates(3, 4, 1000), 1)[0]]
    passes = [steps[:4], steps[4:8], steps[8:]]
    assert passes[0] != passes[1] != passes[2] != passes[0]
    other = scheduled(sequences, Updates(1, 4, 1000), 1, key=2)[0]
    assert [[sorted(trained(batch)) for batch in step] for step in other] != passes[0]


@given(SEQUENCES, st.integers(1, 120))
def test_micro_batches_without_an_update_contain_every_sequence_once(
    sequences: list[TrainingSequence], max_tokens: int
) -> None:
    seen: list[int] = []
    for indices, batch in micro_batches(sequences, max_tokens):
        assert len(batch.packed) <= max_tokens or len(indices) == 1
        assert [index for index, _ in weights_of(batch)] == indices
        seen += indices
    assert sorted(seen) == list(range(len(sequences)))


IDS = st.lists(st.integers(1, 2), min_size=1, max_size=10)
TREES = st.lists(st.tuples(IDS, st.integers(1, 4), st.none() | st.integers(0, 2)), min_size=1, max_size=24)


def of_trees(rows: list[tuple[list[int], int, int | None]]) -> list[TrainingSequence]:
    """Sequences that share prefixes, from prompts of few different ids, lengths of responses and trees."""
    return [
        replace(
            sequence,
            ids=torch.tensor([0, *prompt, *[3] * response]),
            mask=torch.arange(1 + len(prompt) + response) > len(prompt),
            tree=tree,
        )
        for sequence, (prompt, response, tree) in zip(credited([(1, r) for _, r, _ in rows]), rows, strict=True)
    ]


def prefixes(sequences: Iterable[TrainingSequence]) -> int:
    """The distinct prefixes of the inputs of sequences: the nodes of their trie, counted one by one."""
    inputs = [tuple(sequence.inputs.tolist()) for sequence in sequences]
    return len({ids[: end + 1] for ids in inputs for end in range(len(ids))})


@given(TREES, UPDATES)
def test_the_sequences_of_a_tree_share_a_minibatch(
    rows: list[tuple[list[int], int, int | None]], updates: Updates
) -> None:
    sequences = of_trees(rows)
    [steps] = scheduled(sequences, replace(updates, epochs=1), ranks=1)
    step_of = {index: number for number, step in enumerate(steps) for batch in step for index in trained(batch)}
    steps_of_trees = {(tree, step_of[index]) for index, (_, _, tree) in enumerate(rows) if tree is not None}
    assert len(steps_of_trees) == len({tree for tree, _ in steps_of_trees})
    assert set(step_of) == set(range(len(rows)))


@given(TREES, UPDATES)
def test_a_micro_batch_computes_each_distinct_prefix_once(
    rows: list[tuple[list[int], int, int | None]], updates: Updates
) -> None:
    """Where one holds the minibatch, that is the trie of its sequences; every further one repeats one path at most."""
    sequences = of_trees(rows)
    longest = max(len(sequence.inputs) for sequence in sequences)
    whole = replace(updates, micro_batch_tokens=10_000)
    for split, unsplit in zip(scheduled(sequences, updates, 1)[0], scheduled(sequences, whole, 1)[0], strict=True):
        [batch] = unsplit
        fewest = prefixes(sequences[index] for index in trained(batch))
        assert len(batch.packed) == fewest
        used = [part for part in split if trained(part)]
        assert sum(len(part.packed) for part in used) <= fewest + (len(used) - 1) * longest


def test_minibatches_are_cut_by_what_has_signal() -> None:
    """Of 20 sequences 6 have signal, of 3 trajectories: with one trajectory a step each of three steps has two of them,
    and as many others as the next; with two a step there is one step, and without signal none."""
    sequences = [
        replace(sequence, has_signal=index < 6, piece=index // 2)
        for index, sequence in enumerate(credited([(2, 2)] * 20))
    ]
    for least, expected in ((1, 3), (2, 1), (9, 1)):
        [steps] = scheduled(sequences, Updates(1, 5, 1000, min_trajectories=least), 1)
        assert len(steps) == expected
        indices = [[index for batch in step for index in trained(batch)] for step in steps]
        assert sorted(chain.from_iterable(indices)) == list(range(20))
        assert {sum(index < 6 for index in step) for step in indices} == {6 // expected}
        assert max(map(len, indices)) - min(map(len, indices)) <= 1
    assert scheduled([replace(one, has_signal=False) for one in sequences], Updates(), 1) == [[]]


@pytest.mark.parametrize("key", range(20))
def test_a_step_has_so_many_trajectories_where_some_are_cut_into_many_sequences(key: int) -> None:
    """Two trajectories of thirty sequences each, and six of one."""
    pieces = [piece for piece in (0, 1) for _ in range(30)] + list(range(2, 8))
    sequences = [
        replace(sequence, piece=piece) for sequence, piece in zip(credited([(2, 2)] * len(pieces)), pieces, strict=True)
    ]
    [steps] = scheduled(sequences, Updates(1, 4, 1000, min_trajectories=4), 1, key=key)
    indices = [[index for batch in step for index in trained(batch)] for step in steps]
    assert sorted(chain.from_iterable(indices)) == list(range(len(pieces)))
    assert min(len({pieces[index] for index in step}) for step in indices) >= 4
