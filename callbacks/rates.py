"""Watches the rates of success and of valid actions, in rollouts and in evaluations. Knows no trajectory and no
Lightning."""

from collections.abc import Collection
from typing import Any

from callbacks.levels import FigureWindow, Level, Pairs

ROLLOUT, EVALUATION = "rollout/sampled", "val/"  # what the figures of rollouts and of evaluations begin with


class RateWatch:
    """The latest levels of all rates, and their best so far.

    A rate that nobody is alarmed by is kept too: it tells whether a change of entropy does harm.

    Args:
        window: rollouts that make a level; an evaluation is taken alone.
        success_drop: the fraction of the best success rate that may be lost; None never alarms.
        valid_drop: the same of the rate of valid actions.
    """

    def __init__(self, window: int, success_drop: float | None, valid_drop: float | None) -> None:
        self.window = window
        self._drops = {"success_rate": success_drop, "valid": valid_drop, "valid_actions": valid_drop}
        self._figures: dict[str, FigureWindow] = {}

    def observe(self, name: str, epochs: int, pairs: Pairs) -> FigureWindow:
        """Adds an observation of a figure, after so many epochs."""
        figure = self._figure(name)
        figure.observe(epochs, pairs)
        return figure

    def forget_rollouts(self) -> None:
        self._figures = {name: each for name, each in self._figures.items() if name.startswith(EVALUATION)}

    def forget_protocols(self, kept: Collection[str]) -> None:
        """Forgets the evaluations by other protocols than these."""
        self._figures = {name: each for name, each in self._figures.items() if _protocol_in(name) in (None, *kept)}

    def forget_recent(self) -> None:
        """For a policy that was restored; the best levels stay."""
        for figure in self._figures.values():
            figure.forget_recent()

    @property
    def collapsed(self) -> dict[str, str]:
        """The figures that lost more than their drop, in words."""
        return {
            name: f"{name} {_interval(figure.current)}, its best {_interval(figure.best)}"
            for name, figure in self._figures.items()
            if figure.collapsed
        }

    @property
    def fallen(self) -> dict[str, str]:
        """The figures whose last observation is below their best by more than chance, in words."""
        return {
            name: f"{name} is {_interval(figure.latest)}, its best {_interval(figure.best)}"
            for name, figure in self._figures.items()
            if figure.has_fallen
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: figure.state_dict() for name, figure in self._figures.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, figure in state.items():
            self._figure(name).load_state_dict(figure)

    def _figure(self, name: str) -> FigureWindow:
        if name not in self._figures:
            window = 1 if name.startswith(EVALUATION) else self.window
            self._figures[name] = FigureWindow(window, self._drops[name.rpartition("/")[2]])
        return self._figures[name]


def _protocol_in(name: str) -> str | None:
    """The protocol in a figure's name; None of a rollout's."""
    return name.removeprefix(EVALUATION).rpartition("/")[0] if name.startswith(EVALUATION) else None


def _interval(level: Level | None) -> str:
    return "unknown" if level is None else f"{level.value:.3f} [{level.low:.3f}, {level.high:.3f}]"
