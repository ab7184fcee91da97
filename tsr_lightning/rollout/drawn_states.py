"""The initial states that a run has drawn for training, over all its resumes, small enough for its checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

State = tuple[int, str]  # (index of the environment, fingerprint of the initial state)
ShortState = tuple[int, int]

_DIGITS = 15  # of the fingerprint that are kept: 60 bits, so that a million states differ


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a run."""

    instances: int = 0
    states: frozenset[ShortState] = frozenset()  # those that differ
    skipped: int = 0  # seeds that led to a held-out state


class DrawnStates:
    """Counts each place of an epoch once, however often it is drawn."""

    def __init__(self) -> None:
        self._earlier = Counts()  # of the run that this one resumes
        self._drawn: dict[tuple[int, int], tuple[ShortState, int]] = {}  # by epoch and place: the state, seeds skipped

    def add(self, epoch: int, place: int, state: State, skipped: int) -> None:
        self._drawn[epoch, place] = shortened(state), skipped

    def counts(self, epochs: int | None = None) -> Counts:
        """Totals over the epochs before this one, or over all."""
        drawn = [one for (epoch, _), one in self._drawn.items() if epochs is None or epoch < epochs]
        return Counts(
            self._earlier.instances + len(drawn),
            self._earlier.states | {state for state, _ in drawn},
            self._earlier.skipped + sum(skipped for _, skipped in drawn),
        )

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """Totals over the epochs before this one, as plain types."""
        counts = self.counts(epochs)
        return {"instances": counts.instances, "states": sorted(counts.states), "skipped": counts.skipped}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        states = frozenset((env, state) for env, state in state_dict["states"])
        self._earlier, self._drawn = Counts(state_dict["instances"], states, state_dict["skipped"]), {}


def shortened(state: State) -> ShortState:
    """The first bits of a state's fingerprint."""
    env, fingerprint = state
    return env, int(fingerprint[:_DIGITS], 16)
