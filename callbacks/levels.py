"""Whether a figure has fallen far below its best: pure functions and plain state. Knows no trajectory and no Lightning.

A figure is observed once per rollout or evaluation, as pairs (sum, count): of each instance its successes and episodes,
or its valid turns and turns; of the entropy the mean of an epoch's updates and 1. The latest observations together are
its level, which has a 95% interval. It has collapsed where even the upper end lies below (1 - drop) times the lower end
of the best: by more than the drop, and by more than chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from callbacks.statistics import Z95, effective_episodes, success_rate, wilson

Pairs = Sequence[tuple[float, float]]  # (sum, count)


@dataclass(frozen=True, slots=True)
class Level:
    """A figure over some observations, with its 95% interval."""

    value: float
    low: float
    high: float
    design_effect: float = 1.0  # episodes that say as much as one independent one (Kish 1965)


Measure = Callable[[Pairs, Level | None], Level]


def share(pairs: Pairs, best: Level | None) -> Level:
    """A share of successes or of valid turns; every instance counts the same.

    The interval is Wilson's, for as many independent episodes as would spread like the instances. Where all instances
    are alike that number cannot be told from them, so it is at least what the design effect of the best gives.
    """
    outcomes = {place: (int(successes), int(count)) for place, (successes, count) in enumerate(pairs)}
    episodes = sum(count for _, count in outcomes.values())
    independent = effective_episodes(outcomes)
    if best is not None:
        independent = max(independent, episodes / best.design_effect)
    value = success_rate(outcomes)
    interval = wilson(value, independent)
    return Level(value, interval.low, interval.high, episodes / independent)


def mean(pairs: Pairs, best: Level | None) -> Level:
    """A mean over epochs, with the normal interval of their spread; of a single one nothing is certain."""
    values = [value / count for value, count in pairs]
    if len(values) == 1:
        return Level(values[0], 0.0, float("inf"))
    half = Z95 * stdev(values) / sqrt(len(values))
    return Level(fmean(values), max(0.0, fmean(values) - half), fmean(values) + half)


class History:
    """The latest observations of one figure, and the best level that it has had.

    Args:
        measure: `share` or `mean`.
        window: observations that a level is made of.
        drop: the share of the best that may be lost.
    """

    def __init__(self, measure: Measure, window: int, drop: float) -> None:
        self.measure = measure
        self.window = window
        self.drop = drop
        self.now: Level | None = None
        self.best: Level | None = None  # the one with the highest lower end: a lucky handful is no best
        self._recent: list[tuple[int, list[tuple[float, float]]]] = []  # (epochs trained, pairs)

    def see(self, epochs: int, pairs: Pairs) -> None:
        """An observation of the policy after so many epochs; a run that resumes may see its first ones again."""
        earlier = [(then, old) for then, old in self._recent if then < epochs]
        self._recent = [*earlier, (epochs, list(pairs))][-self.window :]
        self.now = self.measure([pair for _, old in self._recent for pair in old], self.best)
        if self.best is None or self.now.low > self.best.low:
            self.best = self.now

    def forget_recent(self) -> None:
        """The policy is another one; the best stays."""
        self.now, self._recent = None, []

    @property
    def collapsed(self) -> bool:
        return self.now is not None and self.best is not None and has_collapsed(self.now, self.best, self.drop)

    @property
    def of_best(self) -> float | None:
        """The level as a share of the best; None where there is none."""
        if self.now is None or self.best is None or self.best.value == 0:
            return None
        return self.now.value / self.best.value

    def to_plain(self) -> dict[str, Any]:
        """Dicts, lists and numbers only: what a checkpoint read with `weights_only` can hold."""
        return {
            "recent": [[epochs, [list(pair) for pair in pairs]] for epochs, pairs in self._recent],
            "best": None if self.best is None else asdict(self.best),
            "now": None if self.now is None else asdict(self.now),
        }

    def load_plain(self, plain: dict[str, Any]) -> None:
        self._recent = [(epochs, [(a, b) for a, b in pairs]) for epochs, pairs in plain["recent"]]
        self.best = None if plain["best"] is None else Level(**plain["best"])
        self.now = None if plain["now"] is None else Level(**plain["now"])


def has_collapsed(now: Level, best: Level, drop: float) -> bool:
    return now.high < (1 - drop) * best.low
