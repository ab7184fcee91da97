"""Intervals over seeds and instances: against a plain loop, against scipy, and by their coverage."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tsr_lightning.studies.report.intervals import discoveries, mean_interval

RNG = np.random.default_rng


def crossed(rng: np.random.Generator, seeds: int, instances: int, spreads: tuple[float, float, float]) -> np.ndarray:
    """value = seed + instance + rest, of mean zero."""
    by_seed, by_instance, rest = spreads
    return (
        by_seed * rng.standard_normal((seeds, 1))
        + by_instance * rng.standard_normal((1, instances))
        + rest * rng.standard_normal((seeds, instances))
    )


def test_is_the_formula_as_a_plain_loop():
    values = crossed(RNG(1), 4, 6, (1.0, 1.0, 0.3))
    seeds, instances = values.shape
    mean = sum(values[s][i] for s in range(seeds) for i in range(instances)) / (seeds * instances)
    rows = [sum(values[s]) / instances for s in range(seeds)]
    columns = [sum(values[s][i] for s in range(seeds)) / seeds for i in range(instances)]
    of_seeds = instances * sum((row - mean) ** 2 for row in rows) / (seeds - 1)
    of_instances = seeds * sum((column - mean) ** 2 for column in columns) / (instances - 1)
    rest = sum(
        (values[s][i] - rows[s] - columns[i] + mean) ** 2 for s, i in itertools.product(range(seeds), range(instances))
    ) / ((seeds - 1) * (instances - 1))
    assert min(of_seeds, of_instances) > rest  # neither is left out
    total = of_seeds + of_instances - rest
    freedom = total**2 / (
        of_seeds**2 / (seeds - 1) + of_instances**2 / (instances - 1) + rest**2 / ((seeds - 1) * (instances - 1))
    )
    half = stats.t.ppf(0.975, freedom) * (total / (seeds * instances)) ** 0.5
    assert mean_interval(values)[:3] == pytest.approx((mean, mean - half, mean + half))


@pytest.mark.parametrize("transposed", [False, True], ids=["instances", "seeds"])
def test_of_one_row_is_that_of_a_mean(transposed: bool):
    values = RNG(2).standard_normal((1, 9))
    expected = stats.ttest_1samp(values[0], 0).confidence_interval(0.95)
    found = mean_interval(values.T if transposed else values)
    p_value = stats.ttest_1samp(values[0], 0).pvalue
    assert found == pytest.approx((values.mean(), expected.low, expected.high, p_value))


def test_seeds_that_differ_by_a_constant_count_as_seeds():
    """All instances alike: the interval is that of the seeds' means."""
    seeds = RNG(3).standard_normal(5)
    expected = stats.ttest_1samp(seeds, 0).confidence_interval(0.95)
    found = mean_interval(np.tile(seeds[:, None], (1, 40)))
    assert found[:3] == pytest.approx((seeds.mean(), expected.low, expected.high))


@pytest.mark.parametrize("shape", [(1, 5), (3, 5)])
def test_values_without_spread_have_a_point(shape: tuple[int, int]):
    assert mean_interval(np.full(shape, 0.25)) == (0.25, 0.25, 0.25, 0.0)


def test_a_single_value_has_no_interval():
    alone = mean_interval(np.full((1, 1), 0.25)).within(0, 1)
    assert (alone.value, alone.has_interval) == (0.25, False)
    assert mean_interval(np.full((1, 2), 0.25)).has_interval


def test_agrees_with_the_bootstrap_over_seeds_and_instances_where_there_are_many():
    """Seeds and instances are resampled apart, in a plain loop."""
    rng = RNG(4)
    values = crossed(rng, 60, 80, (0.5, 0.5, 0.2))
    means = []
    for _ in range(2000):
        seeds, instances = rng.integers(60, size=60), rng.integers(80, size=80)
        means.append(values[seeds][:, instances].mean())
    low, high = np.percentile(means, [2.5, 97.5])
    found = mean_interval(values)
    assert found.high - found.low == pytest.approx(high - low, rel=0.1)
    assert found.low == pytest.approx(low, abs=0.1 * (high - low))


# Spreads of seeds, instances and the rest, as differences of two arms have them.
@pytest.mark.parametrize("spreads", [(0.03, 0.3, 0.4), (0.0, 0.3, 0.4), (0.05, 0.1, 0.4), (0.0, 0.0, 0.4)], ids=str)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_covers_the_truth_in_95_of_100_studies(seeds: int, spreads: tuple[float, float, float]):
    rng = RNG(5)
    studies = 1000
    found = [mean_interval(crossed(rng, seeds, 64, spreads)) for _ in range(studies)]
    coverage = sum(one.low <= 0 <= one.high for one in found) / studies
    assert 0.93 <= coverage <= 0.995  # the standard error of a coverage is 0.007


def test_discoveries_are_those_of_scipy():
    p_values = RNG(8).random(40) ** 4
    expected = stats.false_discovery_control(p_values) <= 0.05
    assert 0 < expected.sum() < 40
    assert discoveries(p_values.tolist()) == expected.tolist()
    assert discoveries([0.04, 0.04]) == [True, True]
    assert discoveries([0.03, 0.2, 0.9]) == [False] * 3  # 0.03 > 0.05 / 3
    assert discoveries([]) == []
