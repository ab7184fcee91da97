"""Success rates of agents and their 95% intervals, as pure functions of counts. Knows no trajectory and no Lightning.

Instances are independent of one another; the episodes of one instance are not, and runs of several seeds play the same
instances. So every interval goes over instances, or over seeds and instances.

| of | one run | several seeds |
|---|---|---|
| a success rate | Wilson's, over the episodes that are independent | crossed random effects |
| a paired difference | Agresti and Min's, over instances | crossed random effects |

Runs of several seeds without any spread count as one run: no interval is ever a point.
"""

from collections.abc import Mapping, Sequence
from math import comb, erfc, isnan, sqrt
from statistics import fmean, pvariance
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Outcomes = Mapping[Any, tuple[int, int]]  # an instance, by any name of it -> (its successes, its episodes)

Z95 = 1.959963984540054  # the normal distribution's 97.5% point
_ROUNDING = 1e-12  # differences of rates that are smaller are 0


class Estimate(NamedTuple):
    """A mean and its 95% interval."""

    value: float
    low: float
    high: float
    p_value: float = 1.0  # two-sided, of a mean of 0, more careful than the interval; not told of a rate


class Difference(NamedTuple):
    """A mean difference over the instances common to both sides."""

    estimate: Estimate
    instances: int


class Solved(NamedTuple):
    """Which instances have a success before and after, counted over those common to both sides."""

    newly: int  # no success before, at least one after
    no_longer: int  # at least one success before, none after
    never_before: int  # no success before
    instances: int


def success_rate(outcomes: Outcomes) -> float:
    """Returns the mean over instances of each one's rate of successes; every instance counts the same."""
    return fmean(_rates(outcomes))


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """Returns the chance that k of an instance's episodes hold a success, drawn without replacement.

    1 − C(n−c, k) / C(n, k), which has no bias for k ≤ n; 1 − (1 − c/n)^k has (Chen et al. 2021, arXiv 2107.03374,
    equation 1).
    """
    return 1 - comb(episodes - successes, k) / comb(episodes, k)


def mean_pass_at_k(outcomes: Outcomes, k: int) -> float:
    """Returns the mean of pass@k over the instances with at least k episodes, of which there are some."""
    return fmean(pass_at_k(episodes, successes, k) for successes, episodes in outcomes.values() if episodes >= k)


def most_episodes(outcomes: Outcomes) -> int:
    """Returns the largest k for which some instance's pass@k is known; 0 without instances."""
    return max((episodes for _, episodes in outcomes.values()), default=0)


def solved(before: Outcomes, after: Outcomes) -> Solved:
    """Counts how the set of instances with at least one success changed.

    Under an unchanged policy and as many episodes on both sides the expectations of `newly` and `no_longer` are equal,
    but not 0: an instance that is solved rarely may have its one success on either side.
    """
    common = [instance for instance in before if instance in after]
    pairs = [(before[instance][0] > 0, after[instance][0] > 0) for instance in common]
    return Solved(
        newly=pairs.count((False, True)),
        no_longer=pairs.count((True, False)),
        never_before=sum(not was for was, _ in pairs),
        instances=len(pairs),
    )


def success_estimate(outcomes: Outcomes) -> Estimate:
    """Returns the success rate of one run over instances like these."""
    return wilson(success_rate(outcomes), independent_episodes(outcomes))


def independent_episodes(outcomes: Outcomes, design_effect: float | None = None) -> float:
    """Returns the number of independent episodes that would have the variance seen over instances.

    With one episode each that is exactly the number of instances; with several it lies between that and the number of
    episodes.

    Args:
        outcomes: successes and episodes by instance.
        design_effect: of an earlier evaluation (Kish 1965): episodes that carry as much information as one independent
            one. Instances that are all alike do not show it, so at least what it gives counts.
    """
    episodes = sum(count for _, count in outcomes.values())
    found = _independent(_rates(outcomes), episodes)
    return found if design_effect is None else max(found, episodes / design_effect)


def wilson(rate: float, count: float) -> Estimate:
    """Returns a proportion with its 95% score interval over `count` independent samples (Wilson 1927)."""
    z2 = Z95**2 / count
    centre = (rate + z2 / 2) / (1 + z2)
    half = Z95 * sqrt((rate * (1 - rate) + z2 / 4) / count) / (1 + z2)
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half))


def paired_difference(before: Outcomes, after: Outcomes) -> Difference | None:
    """Returns after minus before of one run, over the instances in both; None if none is."""
    common = [instance for instance in before if instance in after]
    if not common:
        return None
    changes = [_rate(after[instance]) - _rate(before[instance]) for instance in common]
    return Difference(_agresti_min(changes), len(common))


def mean_rate(rates: Floats, episodes: Floats) -> Estimate:
    """Returns the success rate over seeds and instances like these.

    Args:
        rates: [S, I] success rates, a row per seed and a column per instance.
        episodes: [S, I] that each was measured by.
    """
    if _is_one_run(rates):
        value = rates.mean(axis=0).tolist()
        return wilson(fmean(value), _independent(value, float(episodes.mean(axis=0).sum())))
    return _within(_crossed(rates), 0, 1)


def mean_difference(differences: Floats) -> Estimate:
    """Returns the mean of paired differences of success rates over seeds and instances like these.

    Args:
        differences: [S, I] one side minus the other, a row per seed and a column per instance.
    """
    if _is_one_run(differences):
        return _agresti_min(differences.mean(axis=0).tolist())
    return _within(_crossed(differences), -1, 1)


def holm(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Returns which of several comparisons are significant together, by Holm's procedure (1979,
    https://www.jstor.org/stable/4615733).

    The chance that luck is among them is at most `level`, however the comparisons depend on one another. The smallest
    p-value is held against level / n, the next one against level / (n - 1), until one is too large.
    """
    order = sorted(range(len(p_values)), key=lambda place: (isnan(p_values[place]), p_values[place]))
    failing = [rank for rank, place in enumerate(order) if not p_values[place] <= level / (len(order) - rank)]
    holding = set(order[: failing[0]] if failing else order)
    return [place in holding for place in range(len(p_values))]


def _rates(outcomes: Outcomes) -> list[float]:
    return [_rate(outcome) for outcome in outcomes.values()]


def _rate(outcome: tuple[int, int]) -> float:
    successes, episodes = outcome
    return successes / episodes


def _independent(rates: Sequence[float], episodes: float) -> float:
    rate, spread = fmean(rates), pvariance(rates)
    if spread == 0:  # all instances alike: certain successes or failures count as one episode each
        return float(len(rates)) if rate in (0.0, 1.0) else float(episodes)
    return min(len(rates) * rate * (1 - rate) / spread, float(episodes))


def _agresti_min(changes: Sequence[float]) -> Estimate:
    """Wald's interval, after half an instance of each of the four outcomes was added; the value is untouched.

    Agresti and Min 2005, doi.org/10.1002/sim.1781. However alike the instances are, it does not shrink to a point.
    """
    count = len(changes) + 2  # two of the four added halves change nothing, the others by +1 and by −1
    centre = sum(changes) / count
    variance = (sum(change**2 for change in changes) + 1) / count - centre**2
    error = sqrt(variance / count)
    half = Z95 * error
    p_value = erfc(abs(centre) / error / sqrt(2))
    return _within(Estimate(fmean(changes), centre - half, centre + half, p_value), -1, 1)


def _is_one_run(values: Floats) -> bool:
    return len(values) == 1 or bool(np.ptp(values) < _ROUNDING)


def _within(estimate: Estimate, least: float, most: float) -> Estimate:
    return estimate._replace(low=max(estimate.low, least), high=min(estimate.high, most))


def _crossed(values: Floats) -> Estimate:
    """The mean of [S, I] values by the crossed random-effects model: value = mean + seed + instance + rest.

    Two values share luck where they share a seed or an instance. The variance of the mean is (MS_seed + MS_instance −
    MS_rest) / (S·I) by the mean squares of the two-way analysis of variance (Searle, Casella and McCulloch 1992,
    Variance Components, section 4.3), with the t quantile at Satterthwaite's degrees of freedom (1946,
    doi.org/10.2307/3002019). A mean square below that of the rest, which is chance, counts as if its effect were
    absent, in the interval. The p-value, of which `holm` needs the far tail, always counts the seeds by their own mean
    square, or that of the rest, with their few degrees of freedom: without them p-values below .0005 are ten times as
    frequent as they should be at the spreads of real runs.

    It covers less than 95% where seeds differ much or successes are rare: measured 93% at three seeds and 88% at two
    with large seed effects, and 85% at five with rare success; at the spreads of real runs see docs/studies.md. It is
    of one comparison: see `holm` for several.

    No bootstrap, because there are few seeds: the percentiles of a bootstrap over five of them are too narrow by a
    third (√(4/5) for the variance, and 1.96 for t's 2.78).
    """
    from scipy import stats  # of the extra `study`: the figures of one run do without it

    squares = _mean_squares(values)
    mean = float(values.mean())
    error, freedom = _error(squares.present, values.size)
    half = float(stats.t.ppf(0.975, freedom)) * error
    error, freedom = _error(squares.with_seeds, values.size)
    return Estimate(mean, mean - half, mean + half, 2 * float(stats.t.sf(abs(mean) / error, freedom)))


Terms = list[
    tuple[float, int]
]  # signed mean squares that sum to S·I times the variance of the mean; degrees of freedom


class _MeanSquares(NamedTuple):
    """Mean squares of a two-way analysis of variance, each with its degrees of freedom."""

    seeds: tuple[float, int]
    instances: tuple[float, int]
    rest: tuple[float, int]

    @property
    def present(self) -> Terms:
        """Terms of the interval: effects below the residual are left out."""
        found = [effect for effect in (self.seeds, self.instances) if effect[0] > self.rest[0]]
        if len(found) == 2:
            return [*found, (-self.rest[0], self.rest[1])]
        return found or [self.rest]

    @property
    def with_seeds(self) -> Terms:
        """Terms of the p-value: seeds are never left out."""
        of_seeds, of_instances = max(self.seeds[0], self.rest[0]), max(self.instances[0] - self.rest[0], 0.0)
        return [(of_seeds, self.seeds[1]), (of_instances, self.instances[1])]


def _error(terms: Terms, values: int) -> tuple[float, float]:
    """The standard error of the mean of so many values, and Satterthwaite's degrees of freedom."""
    total = sum(term for term, _ in terms)
    freedom = total**2 / sum(term**2 / degrees for term, degrees in terms if term)
    return float(np.sqrt(total / values)), freedom


def _mean_squares(values: Floats) -> _MeanSquares:
    """Mean squares of [S, I] values."""
    seeds, instances = values.shape
    if instances == 1:
        return _MeanSquares((float(values.var(ddof=1)), seeds - 1), (0.0, 1), (0.0, 1))
    by_seed, by_instance, residuals = crossed_effects(values)
    degrees = (seeds - 1) * (instances - 1)
    return _MeanSquares(
        (float(instances * (by_seed**2).sum() / (seeds - 1)), seeds - 1),
        (float(seeds * (by_instance**2).sum() / (instances - 1)), instances - 1),
        (float((residuals**2).sum() / degrees), degrees),
    )


def crossed_effects(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns what seeds [S, 1], instances [1, I] and the rest [S, I] add to the mean of [S, I] values."""
    mean, by_seed, by_instance = values.mean(), values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    return by_seed - mean, by_instance - mean, values - by_seed - by_instance + mean
