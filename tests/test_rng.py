"""Every draw is a pure function of its key: equal one by one and vectorised, equal in every process, and uniform."""

import math
import os

import numpy as np
import pytest
import torch
from commands import python_output
from hypothesis import given
from hypothesis import strategies as st

from tsr_lightning.rng import Key, Stream, uniforms

WORDS = st.integers(0, 2**64 - 1)
N = 20_000
LEVEL = 1e-4  # significance level of the uniformity tests; the keys are fixed, so the results never change

SAMPLE = (
    "from tsr_lightning.rng import Key, Stream;"
    "key = Key(7).fold_in('epoch', 3, Stream.POLICY, 'ü');"
    "print(key.value, key.bits(2), repr(key.uniform(5)), key.generator().integers(1 << 62), hash('salted'))"
)


@given(st.lists(WORDS, min_size=1, max_size=20), WORDS)
def test_vectorised_and_single_draws_are_equal(values: list[int], index: int) -> None:
    """Bit for bit, at any index, wrap-around included; with one index for all keys or one for each."""
    keys = np.array(values, dtype=np.uint64)
    assert uniforms(keys, index).tolist() == [Key(value).uniform(index) for value in values]
    each = np.array([(index + i) % 2**64 for i in range(len(values))], dtype=np.uint64)
    together = uniforms(keys, each).tolist()
    assert together == [Key(value).uniform(int(i)) for value, i in zip(values, each, strict=True)]


@given(WORDS, WORDS)
def test_a_uniform_is_a_multiple_of_two_to_the_minus_53_below_one(value: int, index: int) -> None:
    drawn = Key(value).uniform(index)
    assert 0 <= drawn < 1
    assert (drawn * 2**53).is_integer()


def test_bits_match_the_published_splitmix64_vector() -> None:
    """The first three outputs of seed 1234567."""
    assert [Key(1234567).bits(index) for index in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


DRAWS = {
    "one key, many indices": lambda: uniforms(np.full(N, 42, dtype=np.uint64), np.arange(N, dtype=np.uint64)),
    "many keys in a row": lambda: uniforms(np.arange(N, dtype=np.uint64), 0),
    "folded keys": lambda: np.array([Key(1).fold_in("member", i).uniform() for i in range(N)]),
    "children of children": lambda: np.array(
        [Key(1).fold_in(i // 100).fold_in(i % 100).fold_in(Stream.POLICY).uniform() for i in range(N)]
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_uniform(name: str) -> None:
    """Kolmogorov-Smirnov test of 20,000 draws, and a chi-square test of successive pairs on a 16 x 16 grid."""
    drawn = DRAWS[name]()
    ordered = np.sort(drawn)
    steps = np.arange(N + 1) / N
    distance = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    assert 2 * math.exp(-2 * N * distance**2) > LEVEL  # the asymptotic tail
    counts, _, _ = np.histogram2d(drawn[::2], drawn[1::2], bins=16, range=[[0, 1], [0, 1]])
    expected = N / 2 / 256
    assert chi_square_tail(float(((counts - expected) ** 2 / expected).sum()), 255) > LEVEL


def test_streams_of_one_node_are_uncorrelated() -> None:
    """Correlations of each pair of streams over 5,000 nodes are within five standard errors of 0."""
    count = 5_000
    table = np.array([[Key(3).fold_in(i, stream).uniform() for i in range(count)] for stream in Stream])
    correlations = np.corrcoef(table) - np.eye(len(Stream))
    assert abs(correlations).max() < 5 / math.sqrt(count)


def test_fold_in_distinguishes_types_order_and_boundaries() -> None:
    key = Key(5)
    keys = [
        key,
        key.fold_in(),
        key.fold_in(1),
        key.fold_in("1"),
        key.fold_in("i1:1"),
        key.fold_in(-1),
        key.fold_in(1, 2),
        key.fold_in(2, 1),
        key.fold_in(12),
        key.fold_in("a", "b"),
        key.fold_in("b", "a"),
        key.fold_in("ab"),
        key.fold_in("a", "", "b"),
        key.fold_in("a", "b", ""),
        key.fold_in("a").fold_in("b"),
        key.fold_in(Stream.POLICY),
        key.fold_in(Stream.BRANCH),
        Key(6).fold_in(1),
    ]
    assert len({folded.value for folded in keys}) == len(keys)


PARTS = st.lists(st.integers() | st.text(max_size=4), max_size=4).map(tuple)


@given(PARTS, PARTS)
def test_keys_are_equal_only_for_equal_parts(one: tuple[int | str, ...], two: tuple[int | str, ...]) -> None:
    assert (Key(0).fold_in(*one) == Key(0).fold_in(*two)) == (one == two)


def test_draws_are_equal_in_a_process_with_another_hash_seed() -> None:
    salt = "4321" if os.environ.get("PYTHONHASHSEED") != "4321" else "1"
    key = Key(7).fold_in("epoch", 3, Stream.POLICY, "ü")
    here = [str(key.value), str(key.bits(2)), repr(key.uniform(5)), str(key.generator().integers(1 << 62))]
    *there, salted = python_output(SAMPLE, hash_seed=salt).split()
    assert there == here
    assert int(salted) != hash("salted")  # Python's own hash does differ


def chi_square_tail(statistic: float, freedom: int) -> float:
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
