"""pass@k against enumeration, intervals against published numbers, plain loops, scipy and their coverage."""

from itertools import combinations, product
from math import isfinite, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tsr_lightning.statistics import (
    crossed_effects,
    holm,
    mean_difference,
    mean_pass_at_k,
    mean_rate,
    paired_difference,
    pass_at_k,
    solved,
    success_estimate,
    success_rate,
    wilson,
)

RNG = np.random.default_rng

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


def test_mean_pass_at_k_averages_over_instances_with_k_episodes():
    # C(2,2)/C(4,2) = 1/6 for two successes of four, 0 for four, 1 for none: pass@2 = 5/6, 1, 0
    assert mean_pass_at_k({1: (2, 4), 2: (4, 4), 3: (0, 4), 4: (1, 1)}, 2) == pytest.approx((5 / 6 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, count, low, high):
    # Newcombe 1998, Statistics in Medicine 17, 857-872, table I, method 3
    assert wilson(successes / count, count)[1:3] == pytest.approx((low, high), abs=5e-5)


def test_one_episode_each_is_plain_wilson():
    outcomes = {i: (int(i < 15), 1) for i in range(148)}
    assert success_rate(outcomes) == pytest.approx(15 / 148)
    assert success_estimate(outcomes) == pytest.approx(wilson(15 / 148, 148))


def test_effective_episodes_lie_between_instances_and_episodes():
    # All of an instance's episodes alike: as many independent trials as instances.
    assert success_estimate({i: (4 * (i % 2), 4) for i in range(10)}) == pytest.approx(wilson(0.5, 10))
    # Rates 0.25 and 0.75: variance 1/16, so 10 · (1/4) / (1/16) = 40 trials, which is all there were.
    assert success_estimate({i: (1 + 2 * (i % 2), 4) for i in range(10)}) == pytest.approx(wilson(0.5, 40))
    # Rates 0, 1/2, 1/2, 1: variance 1/8, so 4 · (1/4) / (1/8) = 8 trials, of 8.
    assert success_estimate({0: (0, 2), 1: (1, 2), 2: (1, 2), 3: (2, 2)}) == pytest.approx(wilson(0.5, 8))
    # Rates 0, 0, 1/2, 1: mean 3/8, mean square 5/16, variance 11/64, so 4 · (15/64) / (11/64) = 60/11 trials.
    assert success_estimate({0: (0, 2), 1: (0, 2), 2: (1, 2), 3: (2, 2)}) == pytest.approx(wilson(3 / 8, 60 / 11))
    # Certain successes count as one episode per instance; equal uncertain ones never more than their episodes.
    assert success_estimate(dict.fromkeys(range(10), (8, 8))) == pytest.approx(wilson(1.0, 10))
    assert success_estimate(dict.fromkeys(range(10), (4, 8))) == pytest.approx(wilson(0.5, 80))


@given(OUTCOMES)
def test_the_interval_of_a_rate_contains_its_rate_and_is_never_a_point(outcomes):
    _, low, high, _ = success_estimate(outcomes)
    assert 0 <= low < high <= 1
    assert low - 1e-12 <= success_rate(outcomes) <= high + 1e-12


def test_the_paired_difference_by_hand():
    before = {1: (0, 1), 2: (0, 1), 3: (1, 1), 4: (1, 1), 98: (1, 1)}
    after = {1: (1, 1), 2: (1, 1), 3: (1, 1), 4: (0, 1), 99: (1, 1)}
    difference = paired_difference(before, after)
    # Changes 1, 1, 0, −1 over the four in both: mean 1/4. Adding ½ · (0, 0, +1, −1): N = 6, mean 1/6,
    # variance (3 + 1)/6 − 1/36 = 23/36, half width 1.959964 · √(23/36/6) = 0.639566
    assert difference.instances == 4
    assert difference.estimate[:3] == pytest.approx((0.25, 1 / 6 - 0.639566, 1 / 6 + 0.639566), abs=1e-6)
    z = (1 / 6) / (23 / 36 / 6) ** 0.5
    assert difference.estimate.p_value == pytest.approx(2 * stats.norm.sf(z))


def test_pairing_narrows_the_interval_where_the_same_instances_are_hard():
    before = {i: (int(i >= 50), 1) for i in range(100)}
    after = {i: (int(i >= 40), 1) for i in range(100)}  # ten instances gained, none lost
    assert paired_difference(before, after).estimate.low > 0
    before_high, after_low = success_estimate(before).high, success_estimate(after).low
    assert after_low < before_high  # unpaired, the two intervals overlap


def test_without_a_common_instance_there_is_no_difference():
    assert paired_difference({1: (1, 1)}, {2: (1, 1)}) is None


@given(OUTCOMES, OUTCOMES)
def test_a_difference_interval_contains_its_value(before, after):
    difference = paired_difference(before, after)
    if difference is not None:
        value, low, high, _ = difference.estimate
        assert all(map(isfinite, (low, high)))
        assert -1 <= low <= value + 1e-12
        assert value - 1e-12 <= high <= 1
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
        _, low, high, _ = success_estimate(b)
        rates += low <= 1 / 2 <= high
        _, low, high, _ = paired_difference(b, a).estimate
        differences += low <= 1 / 6 <= high
    # 95% of 1,000, give or take three standard errors of 0.7%; a little more is allowed, less is not
    assert 0.93 <= rates / runs <= 0.98
    assert 0.93 <= differences / runs <= 0.99


def crossed(rng: np.random.Generator, seeds: int, instances: int, spreads: tuple[float, float, float]) -> np.ndarray:
    """value = seed + instance + rest, of mean zero."""
    by_seed, by_instance, rest = spreads
    return (
        by_seed * rng.standard_normal((seeds, 1))
        + by_instance * rng.standard_normal((1, instances))
        + rest * rng.standard_normal((seeds, instances))
    )


def test_is_the_formula_as_a_plain_loop():
    values = crossed(RNG(1), 4, 6, (0.1, 0.1, 0.03))
    seeds, instances = values.shape
    mean = sum(values[s][i] for s in range(seeds) for i in range(instances)) / (seeds * instances)
    rows = [sum(values[s]) / instances for s in range(seeds)]
    columns = [sum(values[s][i] for s in range(seeds)) / seeds for i in range(instances)]
    of_seeds = instances * sum((row - mean) ** 2 for row in rows) / (seeds - 1)
    of_instances = seeds * sum((column - mean) ** 2 for column in columns) / (instances - 1)
    rest = sum(
        (values[s][i] - rows[s] - columns[i] + mean) ** 2 for s, i in product(range(seeds), range(instances))
    ) / ((seeds - 1) * (instances - 1))
    assert min(of_seeds, of_instances) > rest  # neither is left out
    total = of_seeds + of_instances - rest
    freedom = total**2 / (
        of_seeds**2 / (seeds - 1) + of_instances**2 / (instances - 1) + rest**2 / ((seeds - 1) * (instances - 1))
    )
    error = (total / (seeds * instances)) ** 0.5
    half = stats.t.ppf(0.975, freedom) * error
    of_instances -= rest  # the p-value has what the instances add, with their degrees of freedom
    freedom = total**2 / (of_seeds**2 / (seeds - 1) + of_instances**2 / (instances - 1))
    p_value = 2 * stats.t.sf(abs(mean) / error, freedom)
    assert mean_difference(values) == pytest.approx((mean, mean - half, mean + half, p_value))


def test_of_one_instance_is_that_of_a_mean_over_seeds():
    values = RNG(2).uniform(-0.5, 0.5, (9, 1))
    expected = stats.ttest_1samp(values[:, 0], 0)
    interval = expected.confidence_interval(0.95)
    found = mean_difference(values)
    assert found == pytest.approx((values.mean(), interval.low, interval.high, expected.pvalue))


class TestOneRun:
    """One interval of a run, whoever asks."""

    def test_a_seed_alone_has_the_intervals_of_its_outcomes(self):
        rng = RNG(7)
        before, after = ({i: (int(rng.integers(5)), 4) for i in range(30)} for _ in range(2))
        rates = [np.array([[s / n for s, n in side.values()]]) for side in (before, after)]
        episodes = np.full((1, 30), 4.0)
        assert mean_rate(rates[0], episodes) == pytest.approx(success_estimate(before))
        found = paired_difference(before, after)
        assert found is not None
        assert mean_difference(rates[1] - rates[0]) == pytest.approx(found.estimate)

    @pytest.mark.parametrize(("shape", "value"), [((1, 5), 0.0), ((3, 5), 1.0), ((1, 1), 0.5), ((2, 1), 0.25)])
    def test_no_interval_is_a_point(self, shape: tuple[int, int], value: float):
        rate = mean_rate(np.full(shape, value), np.full(shape, 4.0))
        count = shape[1] if value in (0, 1) else 4 * shape[1]
        assert rate == wilson(value, count)
        change = mean_difference(np.full(shape, value))
        assert (change.value, change.low < change.high) == (value, True)

    def test_seeds_without_spread_are_one_seed(self):
        assert mean_difference(np.full((4, 9), 0.5)) == mean_difference(np.full((1, 9), 0.5))
        thirds = np.array([[1 - 2 / 3, 1 / 3], [1 / 3, 1 / 3], [1 / 3, 1 / 3]])
        assert np.ptp(thirds) > 0  # by rounding
        assert mean_difference(thirds) == pytest.approx(mean_difference(np.full((1, 2), 1 / 3)))


def test_the_ends_of_an_interval_are_possible():
    values = np.array([[1.0, 0.9], [0.2, 1.0]])
    assert mean_rate(values, np.ones((2, 2)))[1:3] == (0, 1)
    assert mean_difference(-values)[1:3] == (-1, 1)


def test_seeds_that_differ_by_a_constant_count_as_seeds():
    """All instances alike: the interval is that of the seeds' means."""
    seeds = 0.1 * RNG(3).standard_normal(5)
    expected = stats.ttest_1samp(seeds, 0).confidence_interval(0.95)
    found = mean_difference(np.tile(seeds[:, None], (1, 40)))
    assert found[:3] == pytest.approx((seeds.mean(), expected.low, expected.high))


def test_agrees_with_the_bootstrap_over_seeds_and_instances_where_there_are_many():
    """Seeds and instances are resampled apart, in a plain loop."""
    rng = RNG(4)
    values = crossed(rng, 60, 80, (0.5, 0.5, 0.2))
    means = []
    for _ in range(2000):
        seeds, instances = rng.integers(60, size=60), rng.integers(80, size=80)
        means.append(values[seeds][:, instances].mean())
    low, high = np.percentile(means, [2.5, 97.5])
    found = mean_difference(values)
    assert found.high - found.low == pytest.approx(high - low, rel=0.1)
    assert found.low == pytest.approx(low, abs=0.1 * (high - low))


# Spreads of seeds, instances and the rest, as differences of two arms have them.
@pytest.mark.parametrize("spreads", [(0.03, 0.3, 0.4), (0.0, 0.3, 0.4), (0.05, 0.1, 0.4), (0.0, 0.0, 0.4)], ids=str)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_covers_the_truth_in_95_of_100_studies(seeds: int, spreads: tuple[float, float, float]):
    rng = RNG(5)
    studies = 1000
    found = [mean_difference(crossed(rng, seeds, 64, spreads)) for _ in range(studies)]
    coverage = sum(one.low <= 0 <= one.high for one in found) / studies
    assert 0.93 <= coverage <= 0.995  # the standard error of a coverage is 0.007


@pytest.mark.parametrize(
    "spreads",
    [
        (0.035, 0.051, 0.272),
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ((0.0, 0.1, 0.4), (0.07, 0.08, 0.41))),
    ],
    ids=str,
)
def test_small_p_values_are_as_rare_as_they_say(spreads: tuple[float, float, float]):
    """Holm's procedure over a hundred comparisons asks for a p-value of .0005, far beyond a 95% interval."""
    rng, level, studies = RNG(6), 0.001, 20_000
    small = sum(mean_difference(crossed(rng, 5, 64, spreads)).p_value < level for _ in range(studies))
    assert small <= 1.6 * level * studies  # three standard errors above


def test_holm_holds_what_every_set_of_true_hypotheses_would_leave():
    """The closed testing procedure: a hypothesis is rejected where Bonferroni rejects every intersection with it."""
    for seed in range(50):
        p_values = (RNG(seed).random(5) ** 4).tolist()
        sets = [s for size in range(1, 6) for s in combinations(range(5), size)]
        rejected = {s: min(p_values[i] for i in s) <= 0.05 / len(s) for s in sets}
        assert holm(p_values) == [all(rejected[s] for s in sets if i in s) for i in range(5)]
    assert holm([0.01, 0.04, 0.02]) == [True] * 3  # 0.01 <= 0.05 / 3, 0.02 <= 0.05 / 2, 0.04 <= 0.05
    assert holm([0.04, 0.04]) == [False, False]  # 0.04 > 0.05 / 2
    assert holm([0.001, 0.03, 0.026]) == [True, False, False]  # 0.026 > 0.05 / 2
    assert holm([]) == []
    assert holm([0.04, nan, 0.001]) == [False, False, True]


def test_effects_of_seeds_and_instances_add_up():
    values = crossed(RNG(9), 3, 4, (0.3, 0.2, 0.1))
    by_seed, by_instance, rest = crossed_effects(values)
    assert values.mean() + by_seed + by_instance + rest == pytest.approx(values)
    assert [by_seed.sum(), by_instance.sum(), *rest.sum(0), *rest.sum(1)] == pytest.approx([0] * 9)
