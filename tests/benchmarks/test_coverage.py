"""Coverage of the verdict's intervals: spreads are found again, and new studies have them."""

import numpy as np
import pytest

from benchmarks.coverage import Effects, coverage, normal, resampled

RNG = np.random.default_rng


def crossed(rng: np.random.Generator, seeds: int, instances: int) -> np.ndarray:
    by_seed, by_instance = rng.standard_normal((seeds, 1)), rng.standard_normal((1, instances))
    return 0.3 * by_seed + 0.2 * by_instance + 0.1 * rng.standard_normal((seeds, instances)) + 0.5


def test_spreads_are_those_that_values_were_made_with():
    found = Effects.of(crossed(RNG(1), 200, 300))
    assert found.spreads == pytest.approx((0.3, 0.2, 0.1), rel=0.1)
    alike = Effects.of(0.5 + 0.1 * RNG(2).standard_normal((5, 256)))
    assert alike.spreads == pytest.approx((0, 0, 0.1), abs=0.02)


@pytest.mark.parametrize("kind", [normal, resampled])
def test_new_studies_have_these_spreads_and_no_difference(kind):
    effects = Effects.of(crossed(RNG(3), 40, 50))
    drawn = np.stack([effects.draw(kind(RNG(seed)), 40) for seed in range(60)])
    assert drawn.shape == (60, 40, 50)
    assert abs(drawn.mean()) < 0.03
    spreads = np.mean([Effects.of(each).spreads for each in drawn], axis=0)
    assert spreads == pytest.approx(effects.spreads, rel=0.1)


def test_resampled_effects_are_those_that_were_found():
    values = crossed(RNG(4), 3, 5)
    effects = Effects((values[:, :1], values[:1], values), (1.0, 0.0, 0.0))
    size = np.sqrt((values[:, 0] ** 2).mean())
    assert set(np.round(effects.draw(resampled(RNG(5)), 9)[:, 0] * size, 9)) <= set(np.round(values[:, 0], 9))


def test_an_interval_of_normal_effects_covers_and_one_of_a_rare_outlier_does_not():
    values = crossed(RNG(6), 5, 40)
    assert coverage(Effects.of(values), normal(RNG(7)), 5, 300) > 0.9
    outlier = np.array([[0.3], [0.3], [0.3], [0.3], [-0.5]]) + 0.05 * RNG(8).standard_normal((5, 40))
    assert coverage(Effects.of(outlier), resampled(RNG(9)), 5, 300) < 0.85
