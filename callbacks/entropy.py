"""Judges the entropy of a policy's updates, with its success beside it. Knows no trajectory and no Lightning.

A fall alone is no collapse: a warm start loses nine tenths of its entropy while success rises. A rise alone is one only
where it is large: no run of docs/results rose by more than 0.36 nats above its lowest.
"""

from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

DIVERGED = 1.0  # nats a token above the lowest, which no success excuses
LEAST_RISE = 0.05  # nats; below this a share of a low entropy is noise


class Entropies(NamedTuple):
    """Nats a token."""

    mean: float  # over the window
    latest: float  # of the last epoch
    highest: float  # mean over a window
    lowest: float  # of an epoch


class EntropyWatch:
    """The entropies of the latest epochs, and their highest and lowest so far.

    Args:
        window: epochs whose mean is compared with the highest such mean. The latest epoch alone is compared with the
            lowest, because a policy that diverges does so within a few epochs.
        drop: the share of the highest that may be lost; None never alarms.
        rise: the share of the lowest that may be gained; None never alarms.
    """

    def __init__(self, window: int, drop: float | None, rise: float | None) -> None:
        self.window = window
        self.drop = drop
        self.rise = rise
        self.now: Entropies | None = None
        self._recent: list[tuple[int, float]] = []  # (epochs trained, nats a token)

    def observe(self, epochs: int, nats: float) -> None:
        """Adds an epoch's mean; a figure that is not finite is none."""
        if not isfinite(nats):
            return
        self._recent = [*((then, old) for then, old in self._recent if then < epochs), (epochs, nats)][-self.window :]
        mean = fmean(recent for _, recent in self._recent)
        self.now = Entropies(
            mean,
            nats,
            highest=mean if self.now is None else max(self.now.highest, mean),
            lowest=nats if self.now is None else min(self.now.lowest, nats),
        )

    def alarm(self, *, is_failing: bool) -> str | None:
        """Describes a collapse; None where there is none.

        Args:
            is_failing: True if success or valid actions have fallen below their best by more than chance.
        """
        if self.now is None or not self._recent:
            return None
        mean, latest, highest, lowest = self.now
        gained = latest - lowest
        if self.rise is not None and (
            gained > DIVERGED or (is_failing and gained > max(self.rise * lowest, LEAST_RISE))
        ):
            return f"{latest:.3f}, its lowest {lowest:.3f}"
        if self.drop is not None and is_failing and mean < (1 - self.drop) * highest:
            return f"{mean:.3f}, its highest {highest:.3f}"
        return None

    def forget_recent(self) -> None:
        """For a policy that was restored; highest and lowest stay."""
        self._recent = []

    def state_dict(self) -> dict[str, Any]:
        """Plain types only: what a checkpoint loaded with `weights_only` can hold."""
        recent = [[epochs, nats] for epochs, nats in self._recent]
        return {"recent": recent, "now": None if self.now is None else list(self.now)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = [(epochs, nats) for epochs, nats in state["recent"]]
        self.now = None if state["now"] is None else Entropies(*state["now"])
