"""Packing: shared prefixes once, and packs of sequences that share them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tsr_lightning.batching.packing import (
    Ids,
    Mask,
    lexicographic_order,
    model_inputs,
    pack,
    shard,
    share_out,
    split_by_tokens,
)

Masked = tuple[Ids, Mask]


def masked(tokens: list[tuple[int, bool]]) -> Masked:
    """Its first id is never sampled, its last one always."""
    ids, sampled = zip(*tokens, strict=True)
    return np.array(ids), np.array([False, *sampled[1:-1], True])


# of two ids, so that many prefixes are shared
SEQUENCES = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=2, max_size=9).map(masked), min_size=1, max_size=20
)


@given(SEQUENCES)
def test_the_packed_tokens_are_the_trie_of_the_inputs(sequences: list[Masked]) -> None:
    """Each distinct prefix that a token was sampled after, or that leads there, once: counted by brute force."""
    packed = pack(sequences)
    prefixes = {tuple(ids[:length].tolist()) for ids, _ in sequences for length in range(1, len(ids))}
    assert len(packed) == len(prefixes)
    assert packed.unshared_tokens == sum(len(ids) - 1 for ids, _ in sequences)
    prefix_at: dict[int, tuple[int, ...]] = {}  # packed token -> the prefix that ends with it
    total = 0
    for segment in packed.segments:
        for position in range(total, total + segment.length):
            path = segment.path[: len(segment.path) - (total + segment.length - position) + 1]
            assert path[-1] == position
            prefix_at[position] = tuple(packed.ids[path].tolist())
            assert packed.positions[position] == len(path) - 1
        total += segment.length
    assert set(prefix_at.values()) == prefixes
    contexts = [prefix_at[position] for position in packed.output_positions[packed.target_index].tolist()]
    assert contexts == [tuple(ids[:i].tolist()) for ids, mask in sequences for i in mask.nonzero()[0]]
    targets = packed.target_ids[packed.target_index].tolist()
    assert targets == [token for ids, mask in sequences for token in ids[mask].tolist()]
    assert len(packed.output_positions) == len(set(zip(contexts, targets, strict=True)))  # one output where shared


@given(SEQUENCES, st.integers(1, 40), st.integers(1, 4))
def test_splits_keep_shared_prefixes_together(sequences: list[Masked], max_tokens: int, ranks: int) -> None:
    """Packs are as full as the limit on packed tokens allows; every shard has a sequence if there are enough."""
    inputs = [model_inputs(*sequence) for sequence in sequences]
    order = lexicographic_order(inputs)
    assert [inputs[i].tolist() for i in order] == sorted(ids.tolist() for ids in inputs)
    ordered = [inputs[i] for i in order]
    packs = split_by_tokens(ordered, max_tokens)
    sizes = [len(pack([sequences[order[i]] for i in part])) for part in packs]
    assert [i for part in packs for i in part] == list(range(len(sequences)))
    for part, size, following in zip(packs, sizes, [*packs[1:], None], strict=True):
        assert size <= max_tokens or len(part) == 1
        if following is not None:  # no pack has room for one more
            assert len(pack([sequences[order[i]] for i in (*part, following[0])])) > max_tokens
    parts = shard(ordered, ranks)
    assert [i for part in parts for i in part] == list(range(len(sequences)))
    assert sum(len(part) > 0 for part in parts) == min(len(sequences), ranks)


def test_a_sequence_without_sampled_ids_is_packed_whole() -> None:
    packed = pack([(np.array([3, 4, 5]), np.zeros(3, dtype=np.bool_))])
    assert packed.ids.tolist() == [3, 4, 5]
    assert len(packed.output_positions) == len(packed.target_index) == 0


@given(st.lists(st.lists(st.integers(0, 40), max_size=4), min_size=1, max_size=20), st.integers(1, 4))
def test_every_item_is_in_one_share(items: list[list[int]], parts: int) -> None:
    """Items of up to four sequences each; every share has one if there are enough."""
    sequences = [[np.arange(length + 1) % 3 for length in item] for item in items]
    shares = share_out(sequences, parts)
    assert sorted(i for share in shares for i in share) == list(range(len(items)))
    assert all(share == sorted(share) for share in shares)
    assert len(shares) == parts
    assert sum(bool(share) for share in shares) == min(len(items), parts)


def test_shares_have_equally_many_tokens_and_keep_prefixes_together() -> None:
    """Two groups of four, of prompts of 50 tokens and own responses of 10: each share is a group, of 50 + 4 x 10."""
    prompts = [np.full(50, prompt) for prompt in (1, 2)]
    sequences = [[np.append(prompts[i % 2], np.full(10, 3 + i))] for i in range(8)]
    assert share_out(sequences, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_share_counts_all_sequences_of_an_item() -> None:
    """Of lengths 30, 10, 10 and 10, the first in three sequences."""
    long = [np.array([1, *range(7 * i, 7 * i + 9)]) for i in range(3)]
    short = [[np.array([item, *range(9)])] for item in (2, 3, 4)]
    assert share_out([long, *short], 2) == [[0], [1, 2, 3]]
