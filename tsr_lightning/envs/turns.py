"""A turn of a text environment: the noise that it draws, and its outcome."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tsr_lightning.rng import Key

StateT = TypeVar("StateT", bound=Hashable)


@dataclass(slots=True)
class Draws:
    """The numbers of a key, one after the other."""

    key: Key
    count: int = 0  # numbers used up

    def uniform(self) -> float:
        """In [0, 1)."""
        self.count += 1
        return self.key.uniform(self.count - 1)

    def below(self, bound: int) -> int:
        """In [0, bound)."""
        return int(self.uniform() * bound)


@dataclass(frozen=True, slots=True)
class TurnResult(Generic[StateT]):
    """The outcome of a turn's actions."""

    state: StateT
    reward: float = 0.0
    played: int = 1  # actions; fewer than were given where the task ended
    effective: bool = True  # whether an action changed the state
    success: bool = False  # the task is solved, which ends the episode
    terminated: bool = False  # the episode ends without success
    problem: str = ""  # why an action could not be played, which makes the response invalid; "" if all could
