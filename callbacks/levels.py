"""Tells whether a figure has fallen far below its best: pure functions and plain state, no trajectory and no Lightning.

A figure is observed once per rollout or evaluation, as pairs (sum, count): of each instance its successes and episodes,
or its valid turns and turns. The latest observations together are its level, with a 95% interval. It has collapsed
where the upper end of that interval is below (1 - drop) times the lower end of the best's: by more than the drop, and
by more than chance.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tsr_lightning.statistics import independent_episodes, success_rate, wilson

Pairs = Sequence[tuple[float, float]]  # (sum, count)


@dataclass(frozen=True, slots=True)
class Level:
    """A figure over some observations, with its 95% interval."""

    value: float
    low: float
    high: float
    design_effect: float = 1.0  # episodes that carry as much information as one independent one (Kish 1965)


def rate(pairs: Pairs, best: Level | None) -> Level:
    """Returns a rate of successes or of valid turns; every instance counts the same.

    The interval is that of an evaluation. Where all instances are alike they do not show how many episodes are
    independent, so it is at least what the design effect of the best gives.
    """
    outcomes = {place: (int(successes), int(count)) for place, (successes, count) in enumerate(pairs)}
    episodes = sum(count for _, count in outcomes.values())
    independent = independent_episodes(outcomes, None if best is None else best.design_effect)
    estimate = wilson(success_rate(outcomes), independent)
    return Level(estimate.value, estimate.low, estimate.high, episodes / independent)


class FigureWindow:
    """The latest observations of one figure, and its best level.

    Args:
        window: observations that a level is made of.
        drop: the fraction of the best that may be lost; None never counts as a collapse.
    """

    def __init__(self, window: int, drop: float | None) -> None:
        self.window = window
        self.drop = drop
        self.current: Level | None = None
        self.latest: Level | None = None  # of the last observation alone
        self.best: Level | None = None  # with the highest lower end: a few lucky episodes are no best
        self._recent: list[tuple[int, list[tuple[float, float]]]] = []  # (epochs trained, pairs)

    def observe(self, epochs: int, pairs: Pairs) -> None:
        """Adds an observation of the policy after so many epochs; a resumed run may repeat its first ones."""
        earlier = [(then, old) for then, old in self._recent if then < epochs]
        self._recent = [*earlier, (epochs, list(pairs))][-self.window :]
        self.current = rate([pair for _, old in self._recent for pair in old], self.best)
        self.latest = rate(pairs, self.best)
        if self.best is None or self.current.low > self.best.low:
            self.best = self.current

    def forget_recent(self) -> None:
        """Forgets the recent observations, where a policy was restored; the best stays."""
        self.current, self.latest, self._recent = None, None, []

    @property
    def collapsed(self) -> bool:
        if self.current is None or self.best is None or self.drop is None:
            return False
        return has_collapsed(self.current, self.best, self.drop)

    @property
    def has_fallen(self) -> bool:
        """True if the last observation is below the best by more than chance, however little that is."""
        return self.latest is not None and self.best is not None and has_collapsed(self.latest, self.best, 0.0)

    @property
    def fraction_of_best(self) -> float | None:
        """The level as a fraction of the best; None where there is no level or the best is 0."""
        if self.current is None or self.best is None or self.best.value == 0:
            return None
        return self.current.value / self.best.value

    def state_dict(self) -> dict[str, Any]:
        """Returns plain types, which a checkpoint loaded with `weights_only` can hold."""
        return {
            "recent": [[epochs, [list(pair) for pair in pairs]] for epochs, pairs in self._recent],
            "best": None if self.best is None else asdict(self.best),
            "current": None if self.current is None else asdict(self.current),
            "latest": None if self.latest is None else asdict(self.latest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = [(epochs, [(a, b) for a, b in pairs]) for epochs, pairs in state["recent"]]
        self.best = None if state["best"] is None else Level(**state["best"])
        self.current = None if state["current"] is None else Level(**state["current"])
        self.latest = None if state["latest"] is None else Level(**state["latest"])


def has_collapsed(current: Level, best: Level, drop: float) -> bool:
    return current.high < (1 - drop) * best.low
