"""The 95% interval of a mean over seeds and instances."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tsr_lightning.studies.report.curves import Floats

_LEVEL = 0.975


class Estimate(NamedTuple):
    """A mean and its 95% interval, which is infinite where there is but one value."""

    value: float
    low: float
    high: float
    p_value: float = 1.0  # two-sided, of a mean of 0

    @property
    def has_interval(self) -> bool:
        return self.high < math.inf

    def within(self, least: float, most: float) -> "Estimate":
        """With the interval, if there is one, cut to what is possible."""
        if not self.has_interval:
            return self
        return self._replace(low=max(self.low, least), high=min(self.high, most))


def mean_interval(values: Floats) -> Estimate:
    """The mean of all values, for seeds and instances like these.

    Every seed plays the same instances, so seeds and instances are crossed: two values share luck where they share
    either. The interval is that of the crossed random-effects model, value = mean + seed + instance + rest: the
    variance of the mean is (MS_seed + MS_instance − MS_rest) / (S·I) by the mean squares of the two-way analysis of
    variance (Searle, Casella and McCulloch 1992, Variance Components, section 4.3), with the t quantile of
    `scipy.stats` at Satterthwaite's degrees of freedom (1946, doi.org/10.2307/3002019). A mean square below that of the
    rest, which is chance, counts as if its effect were absent.

    It covers less than 95% where seeds differ much or successes are rare: measured 93% at three seeds and 88% at two
    with large seed effects, and 85% at five with rare success. It is of one comparison: see `discoveries` for several.

    No bootstrap, because there are few seeds: the percentiles of a bootstrap over five of them are too narrow by a
    third (√(4/5) for the variance, and 1.96 for t's 2.78). With one seed the interval is over instances alone, and with
    one instance over seeds alone; a single value has none.

    Args:
        values: [S, I], a row per seed and a column per instance; for a difference, that of both sides.
    """
    seeds, instances = values.shape
    mean = float(values.mean())
    if values.size == 1:
        return Estimate(mean, -math.inf, math.inf)
    terms = _terms(values)
    variance = sum(term for term, _ in terms) / (seeds * instances)
    if variance <= 0:
        return Estimate(mean, mean, mean, 0.0 if mean else 1.0)
    freedom = sum(term for term, _ in terms) ** 2 / sum(term**2 / degrees for term, degrees in terms)
    error = float(np.sqrt(variance))
    half = float(stats.t.ppf(_LEVEL, freedom)) * error
    return Estimate(mean, mean - half, mean + half, 2 * float(stats.t.sf(abs(mean) / error, freedom)))


def discoveries(p_values: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Which of several comparisons to name, by Benjamini and Hochberg (1995): of those that are named at most this
    share is expected to be luck, where comparisons are independent or rise together, as those of shared runs do."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    passing = [rank for rank, place in enumerate(order, 1) if p_values[place] <= rate * rank / len(p_values)]
    named = set(order[: max(passing, default=0)])
    return [place in named for place in range(len(p_values))]


def _terms(values: Floats) -> list[tuple[float, int]]:
    """Signed mean squares that sum to S·I times the variance of the mean, each with its degrees of freedom."""
    seeds, instances = values.shape
    if seeds == 1 or instances == 1:
        return [(float(values.var(ddof=1)), seeds * instances - 1)]
    mean, by_seed, by_instance = values.mean(), values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    degrees = (seeds - 1) * (instances - 1)
    rest = float(((values - by_seed - by_instance + mean) ** 2).sum() / degrees)
    effects = [
        (float(instances * ((by_seed - mean) ** 2).sum() / (seeds - 1)), seeds - 1),
        (float(seeds * ((by_instance - mean) ** 2).sum() / (instances - 1)), instances - 1),
    ]
    present = [(square, freedom) for square, freedom in effects if square > rest]
    if len(present) == 2:
        return [*present, (-rest, degrees)]
    return present or [(rest, degrees)]
