"""Slots: where prefixes are, in pages, and what is free."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tsr_lightning.engines.transformers.trie import PAGE, ROOT, Trie


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([1, 15, 16, 40, 100, 333]))
def test_slots_are_never_shared_nor_lost(seed: int, capacity: int) -> None:
    """Beside a dictionary of prefixes, over sequences that branch, are evicted and cleared."""
    draw = np.random.default_rng(seed)
    trie = Trie(capacity)
    prefixes: dict[tuple[int, ...], int] = {}
    for _ in range(60):
        trie.begin()
        stems = [ids for ids in prefixes if draw.random() < 0.1 and len(ids) < capacity]
        stem = stems[-1] if stems else ()
        ids = (*stem, *draw.integers(0, 3, draw.integers(1, capacity - len(stem) + 1)).tolist())
        matched = trie.match_prefix(ids)
        assert matched == [prefixes[ids[: i + 1]] for i in range(len(matched))]
        trie.reserve(len(ids) - len(matched))
        prefixes = {known: slot for known, slot in prefixes.items() if trie.match_prefix(known)[-1:] == [slot]}
        sequence = trie.insert(ids, matched)
        prefixes |= {ids[: i + 1]: int(slot) for i, slot in enumerate(sequence.slots)}
        assert len(set(prefixes.values())) == len(prefixes) <= capacity
        assert all(0 <= slot < capacity for slot in prefixes.values())
        assert trie.path(int(sequence.slots[-1])).tolist() == sequence.slots.tolist()
        if draw.random() < 0.1:
            trie.clear()
            prefixes.clear()


def test_branches_that_grow_side_by_side_have_pages_of_their_own() -> None:
    trie = Trie(100 * PAGE)
    ends = [trie.add(ROOT, token, 0) for token in range(4)]
    paths = [[end] for end in ends]
    for depth in range(1, 2 * PAGE):
        for path in paths:
            path.append(trie.add(path[-1], 7, depth))
    for path in paths:
        for begin in (0, PAGE):
            assert path[begin] % PAGE == 0
            assert np.diff(path[begin : begin + PAGE]).tolist() == [1] * (PAGE - 1)


def test_pages_hold_nothing_back() -> None:
    """One token of each of many branches, of a store with fewer pages than branches."""
    trie = Trie(4 * PAGE - 3)
    slots = []
    for token in range(trie.capacity):
        trie.reserve(1)
        slots.append(trie.add(ROOT, token, 0))
    assert sorted(slots) == list(range(trie.capacity))
    trie.begin()
    trie.touch(slots[5])
    trie.reserve(trie.capacity - 1)
    again = [trie.add(slots[5], token, 1) for token in range(trie.capacity - 1)]
    assert sorted([slots[5], *again]) == list(range(trie.capacity))
