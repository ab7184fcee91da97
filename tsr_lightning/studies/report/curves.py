"""The curve of a run: success by instance against what the run had cost. Arithmetic alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tsr_lightning.statistics import Floats

# What a curve is drawn and compared against, by the name of its column, all cumulative.
BUDGETS: Mapping[str, str] = {
    "epochs": "epochs",
    "tokens_generated": "generated tokens",
    "env_steps": "environment steps",
    "train_seconds": "seconds of training",
}

Instances = tuple[tuple[int, int], ...]  # each as the place of its environment in `data.env` and its seed

_ROUNDING = 1e-12  # a mean of shares such as 1/3 may lie below the rate that it is


@dataclass(frozen=True)
class Curve:
    """One run under one protocol of evaluation.

    Args:
        seed: of the run.
        instances: [I] the held-out ones.
        costs: [E] by budget, at each evaluation, never falling; `train_seconds` has no evaluation in it.
        rates: [E, I] share of an instance's episodes that succeeded.
        episodes: [E, I] episodes of an instance.
    """

    seed: int
    instances: Instances
    costs: Mapping[str, Floats]
    rates: Floats
    episodes: Floats

    @property
    def success(self) -> Floats:
        """[E] success rates, every instance counted the same."""
        return np.asarray(self.rates.mean(axis=1))

    def within(self, environments: Collection[int]) -> "Curve":
        """Returns the same run on the instances of some environments of a mixture alone.

        Args:
            environments: their places in `data.env`.
        """
        own = [place for place, (env, _) in enumerate(self.instances) if env in environments]
        return replace(
            self,
            instances=tuple(self.instances[place] for place in own),
            rates=self.rates[:, own],
            episodes=self.episodes[:, own],
        )

    def at(self, budget: str, amount: float) -> Floats:
        """Returns [I] rates when so much was spent, linear between two evaluations; the last ones beyond the end."""
        costs = self.costs[budget]
        after = int(np.searchsorted(costs, amount))
        if after == 0 or after == len(costs):
            return np.asarray(self.rates[min(after, len(costs) - 1)])
        share = (amount - costs[after - 1]) / (costs[after] - costs[after - 1])
        return np.asarray((1 - share) * self.rates[after - 1] + share * self.rates[after])

    def spent_until(self, budget: str, success: float) -> float:
        """Returns what was spent when the success rate first reached a value, linear between two evaluations; infinite
        where it never did."""
        reached = np.flatnonzero(self.success >= success - _ROUNDING)
        if len(reached) == 0:
            return float("inf")
        costs, after = self.costs[budget], int(reached[0])
        if after == 0:
            return float(costs[0])
        low, high = self.success[after - 1], self.success[after]
        share = min(float((success - low) / (high - low)), 1.0)
        return float(costs[after - 1] + share * (costs[after] - costs[after - 1]))


def matrix(curves: Sequence[Curve], values: Sequence[Floats]) -> Floats:
    """Returns [S, I] values of several runs over the instances that all of them have, in one order.

    Args:
        curves: the runs, one per seed.
        values: of each, [I] in the order of its own instances.
    """
    common = _common(curves)
    rows = [own[_places(curve.instances, common)] for curve, own in zip(curves, values, strict=True)]
    return np.asarray(rows, dtype=np.float64)


def _common(curves: Sequence[Curve]) -> Instances:
    """The instances that all runs have, sorted."""
    return _shared(tuple(dict.fromkeys(curve.instances for curve in curves)))


# A report compares the same few lists of instances thousands of times.
@lru_cache
def _shared(several: tuple[Instances, ...]) -> Instances:
    return tuple(sorted(set.intersection(*map(set, several))))


@lru_cache
def _places(instances: Instances, common: Instances) -> list[int]:
    places = {instance: place for place, instance in enumerate(instances)}
    return [places[instance] for instance in common]


def paired(first: Sequence[Curve], second: Sequence[Curve]) -> tuple[list[Curve], list[Curve]]:
    """Returns the runs of both arms whose seeds both have, in one order; none without a common seed or instance."""
    others = {curve.seed: curve for curve in second}
    left = [curve for curve in first if curve.seed in others]
    right = [others[curve.seed] for curve in left]
    if not left or not _common([*left, *right]):
        return [], []
    return left, right
