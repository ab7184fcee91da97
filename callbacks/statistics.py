"""The statistics of an evaluation, as pure functions: pass@k and 95% intervals. Knows no trajectory and no Lightning.

Instances are independent of one another; the episodes of one instance are not. So every interval here goes over
instances, and `Outcomes` keeps them apart.
"""

from collections.abc import Mapping
from math import comb, sqrt
from statistics import fmean, pvariance
from typing import Any, NamedTuple

Outcomes = Mapping[Any, tuple[int, int]]  # an instance, by any name of it -> (its successes, its episodes)

Z95 = 1.959963984540054  # the normal distribution's 97.5% point


class Interval(NamedTuple):
    low: float
    high: float


class Solved(NamedTuple):
    """Which instances have a success before and after, counted over those common to both sides."""

    newly: int  # no success before, at least one after
    no_longer: int  # at least one success before, none after
    never_before: int  # no success before
    instances: int


class Difference(NamedTuple):
    """A mean difference over the instances common to both sides."""

    value: float
    interval: Interval
    instances: int


def success_rate(outcomes: Outcomes) -> float:
    """The mean over instances of each one's rate of successes; every instance counts the same."""
    return fmean(_rates(outcomes))


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """The chance that k of an instance's episodes, drawn without replacement, hold a success: 1 − C(n−c, k) / C(n, k).

    Without bias for k ≤ n, which 1 − (1 − c/n)^k is not (Chen et al. 2021, arXiv 2107.03374, equation 1).
    """
    return 1 - comb(episodes - successes, k) / comb(episodes, k)


def mean_pass_at_k(outcomes: Outcomes, k: int) -> float:
    return fmean(pass_at_k(episodes, successes, k) for successes, episodes in outcomes.values())


def fewest_episodes(outcomes: Outcomes) -> int:
    """The largest k for which every instance's pass@k is known."""
    return min(episodes for _, episodes in outcomes.values())


def wilson(rate: float, count: float) -> Interval:
    """The 95% score interval of a proportion over `count` independent samples (Wilson 1927)."""
    z2 = Z95**2 / count
    centre = (rate + z2 / 2) / (1 + z2)
    half = Z95 * sqrt((rate * (1 - rate) + z2 / 4) / count) / (1 + z2)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def effective_episodes(outcomes: Outcomes) -> float:
    """The number of independent episodes that would have the variance seen over instances.

    With one episode each that is exactly the number of instances; with several it lies between that and the number of
    episodes.
    """
    rates = _rates(outcomes)
    rate, spread = fmean(rates), pvariance(rates)
    episodes = float(sum(episodes for _, episodes in outcomes.values()))
    if spread == 0:  # all instances alike: certain successes or failures count as one episode each
        return float(len(rates)) if rate in (0.0, 1.0) else episodes
    return min(len(rates) * rate * (1 - rate) / spread, episodes)


def success_interval(outcomes: Outcomes) -> Interval:
    """The 95% interval of the success rate over instances like these: Wilson's, over the effective episodes."""
    return wilson(success_rate(outcomes), effective_episodes(outcomes))


def paired_difference(before: Outcomes, after: Outcomes) -> Difference | None:
    """After minus before over the instances in both, with the 95% interval of the paired difference; None if none is.

    The interval is Agresti and Min's (2005, doi.org/10.1002/sim.1781): Wald's, after half an instance of each of the
    four outcomes was added. So it never shrinks to a point, however alike the instances are; the value is untouched.
    """
    common = [instance for instance in before if instance in after]
    if not common:
        return None
    changes = [_rate(after[instance]) - _rate(before[instance]) for instance in common]
    count = len(changes) + 2  # two of the four added halves change nothing, the others by +1 and by −1
    centre = sum(changes) / count
    variance = (sum(change**2 for change in changes) + 1) / count - centre**2
    half = Z95 * sqrt(variance / count)
    return Difference(
        fmean(changes), Interval(max(-1.0, centre - half), min(1.0, centre + half)), instances=len(changes)
    )


def solved(before: Outcomes, after: Outcomes) -> Solved:
    """How the set of instances with at least one success changed.

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


def _rates(outcomes: Outcomes) -> list[float]:
    return [_rate(outcome) for outcome in outcomes.values()]


def _rate(outcome: tuple[int, int]) -> float:
    successes, episodes = outcome
    return successes / episodes
