"""pass@k against enumeration, intervals against published numbers and against coverage."""

from itertools import combinations
from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callbacks.statistics import (
    mean_pass_at_k,
    paired_difference,
    pass_at_k,
    solved,
    success_interval,
    success_rate,
    wilson,
)

OUTCOMES = st.dictionaries(
    st.integers(0, 99), st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1
)


def test_pass_at_k_is_the_rate_of_subsets_with_a_success():
    for n in range(1, 8):
        for c in range(n + 1):
            episodes = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(episodes, k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize("n", [64, 128])
def test_pass_at_64_is_that_of_the_paper(n):
    for c in range(n + 1):
        # Chen et al. 2021, figure 3: the numerically stable form
        published = 1.0 if n - c < 64 else 1.0 - np.prod(1.0 - 64 / np.arange(n - c + 1, n + 1))
        assert pass_at_k(n, c, 64) == pytest.approx(published, abs=1e-12)


@given(OUTCOMES, OUTCOMES)
def test_solved_counts_sets_of_instances(before, after):
    both = before.keys() & after.keys()
    was, now = ({i for i in both if side[i][0]} for side in (before, after))
    assert solved(before, after) == (len(now - was), len(was - now), len(both - was), len(both))


def test_mean_pass_at_k_averages_over_instances():
    # C(2,2)/C(4,2) = 1/6 for two successes of four, 0 for four, 1 for none: pass@2 = 5/6, 1, 0
    assert mean_pass_at_k({1: (2, 4), 2: (4, 4), 3: (0, 4)}, 2) == pytest.approx((5 / 6 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, count, low, high):
    # Newcombe 1998, Statistics in Medicine 17, 857-872, table I, method 3
    assert wilson(successes / count, count) == pytest.approx((low, high), abs=5e-5)


def test_one_episode_each_is_plain_wilson():
    outcomes = {i: (int(i < 15), 1) for i in range(148)}
    assert success_rate(outcomes) == pytest.approx(15 / 148)
    assert success_interval(outcomes) == pytest.approx(wilson(15 / 148, 148))


def test_effective_episodes_lie_between_instances_and_episodes():
    # All of an instance's episodes alike: as many independent trials as instances.
    assert success_interval({i: (4 * (i % 2), 4) for i in range(10)}) == pytest.approx(wilson(0.5, 10))
    # Rates 0.25 and 0.75: variance 1/16, so 10 · (1/4) / (1/16) = 40 trials, which is all there were.
    assert success_interval({i: (1 + 2 * (i % 2), 4) for i in range(10)}) == pytest.approx(wilson(0.5, 40))
    # Rates 0, 1/2, 1/2, 1: variance 1/8, so 4 · (1/4) / (1/8) = 8 trials, of 8.
    assert success_interval({0: (0, 2), 1: (1, 2), 2: (1, 2), 3: (2, 2)}) == pytest.approx(wilson(0.5, 8))
    # Rates 0, 0, 1/2, 1: mean 3/8, mean square 5/16, variance 11/64, so 4 · (15/64) / (11/64) = 60/11 trials.
    assert success_interval({0: (0, 2), 1: (0, 2), 2: (1, 2), 3: (2, 2)}) == pytest.approx(wilson(3 / 8, 60 / 11))
    # Certain successes count as one episode per instance; equal uncertain ones never more than their episodes.
    assert success_interval(dict.fromkeys(range(10), (8, 8))) == pytest.approx(wilson(1.0, 10))
    assert success_interval(dict.fromkeys(range(10), (4, 8))) == pytest.approx(wilson(0.5, 80))


@given(OUTCOMES)
def test_a_success_interval_contains_its_rate_and_is_never_a_point(outcomes):
    low, high = success_interval(outcomes)
    assert 0 <= low < high <= 1
    assert low - 1e-12 <= success_rate(outcomes) <= high + 1e-12


def test_the_paired_difference_by_hand():
    before = {1: (0, 1), 2: (0, 1), 3: (1, 1), 4: (1, 1), 98: (1, 1)}
    after = {1: (1, 1), 2: (1, 1), 3: (1, 1), 4: (0, 1), 99: (1, 1)}
    difference = paired_difference(before, after)
    # Changes 1, 1, 0, −1 over the four in both: mean 1/4. Adding ½ · (0, 0, +1, −1): N = 6, mean 1/6,
    # variance (3 + 1)/6 − 1/36 = 23/36, half width 1.959964 · √(23/36/6) = 0.639566
    assert difference.value == 0.25
    assert difference.instances == 4
    assert difference.interval == pytest.approx((1 / 6 - 0.639566, 1 / 6 + 0.639566), abs=1e-6)


def test_pairing_narrows_the_interval_where_the_same_instances_are_hard():
    before = {i: (int(i >= 50), 1) for i in range(100)}
    after = {i: (int(i >= 40), 1) for i in range(100)}  # ten instances gained, none lost
    assert paired_difference(before, after).interval.low > 0
    before_high, after_low = success_interval(before).high, success_interval(after).low
    assert after_low < before_high  # unpaired, the two intervals overlap


def test_without_a_common_instance_there_is_no_difference():
    assert paired_difference({1: (1, 1)}, {2: (1, 1)}) is None


@given(OUTCOMES, OUTCOMES)
def test_a_difference_interval_contains_its_value(before, after):
    difference = paired_difference(before, after)
    if difference is not None:
        low, high = difference.interval
        assert all(map(isfinite, (low, high)))
        assert -1 <= low <= difference.value + 1e-12
        assert difference.value - 1e-12 <= high <= 1
        assert low < high


def test_95_percent_intervals_cover_95_percent():
    """Instances of their own difficulty, four episodes each, 100 of them; 1,000 evaluations."""
    rng = np.random.default_rng(0)
    runs, instances, episodes = 1000, 100, 4
    # Before: difficulty uniform, mean 1/2. After: √difficulty, mean 2/3. The true difference is 1/6.
    hard = rng.uniform(size=(runs, instances))
    before, after = rng.binomial(episodes, hard), rng.binomial(episodes, np.sqrt(hard))
    rates = differences = 0
    for run in range(runs):
        b = {i: (int(c), episodes) for i, c in enumerate(before[run])}
        a = {i: (int(c), episodes) for i, c in enumerate(after[run])}
        low, high = success_interval(b)
        rates += low <= 1 / 2 <= high
        low, high = paired_difference(b, a).interval
        differences += low <= 1 / 6 <= high
    # 95% of 1,000, give or take three standard errors of 0.7%; a little more is allowed, less is not
    assert 0.93 <= rates / runs <= 0.98
    assert 0.93 <= differences / runs <= 0.99
