"""Random play of a task whose states are values: what no chance decides is computed once."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from tsr_lightning.envs.turns import Draws, StateT, TurnResult
from tsr_lightning.rng import Key, Stream, draws_of


class _Kind(NamedTuple, Generic[StateT]):
    """What makes places the same."""

    state: StateT
    succeeded: bool
    ended: bool


class _Place(Generic[StateT]):
    """A state of a task, and what its legal actions lead to."""

    __slots__ = ("actions", "after", "kind")

    def __init__(self, kind: _Kind[StateT], actions: list[tuple[str, ...]]) -> None:
        self.kind = kind
        self.actions = actions  # none where it has ended
        self.after: list[_Place[StateT] | None] = [None] * len(actions)  # None: not played yet, or left to chance


class PlaceMap(Generic[StateT]):
    """The states of a task that random play has passed through, so that what no chance decides is computed once.

    Args:
        legal: the actions that can be played in a state that has not ended, each as a turn of its own.
        play: a turn; see `TextEnv.play`.
        most: places that are remembered; where there are more, all are forgotten.
    """

    def __init__(
        self,
        legal: Callable[[StateT], list[tuple[str, ...]]],
        play: Callable[[StateT, tuple[str, ...], Draws], TurnResult[StateT]],
        most: int,
    ) -> None:
        self._legal = legal
        self._play = play
        self._most = most
        self._places: dict[_Kind[StateT], _Place[StateT]] = {}

    def play(self, start: StateT, keys: Sequence[Key], horizon: int) -> list[int | None]:
        """See `HasRandomPlay`; nothing is played beyond an end of the task itself."""
        found = []
        for key, row in zip(keys, draws_of(keys, horizon), strict=True):
            if len(self._places) > self._most:
                self._places.clear()
            found.append(self._walk(self._place(_Kind(start, False, False)), key, row))
        return found

    def _walk(self, place: _Place[StateT], key: Key, drawn: Sequence[float]) -> int | None:
        noise: Draws | None = None
        for step, number in enumerate(drawn):
            if not place.after:
                return step if place.kind.succeeded else None
            choice = int(number * len(place.after))
            following = place.after[choice]
            if following is None:
                noise = noise or Draws(key.fold_in(Stream.BRANCH))
                following = self._after(place, choice, noise)
            place = following
        return len(drawn) if place.kind.succeeded else None

    def _after(self, place: _Place[StateT], choice: int, noise: Draws) -> _Place[StateT]:
        """Where an action leads, remembered if it used no chance."""
        before = noise.count
        result = self._play(place.kind.state, place.actions[choice], noise)
        after = self._place(_Kind(result.state, result.success, result.success or result.terminated))
        if noise.count == before:
            place.after[choice] = after
        return after

    def _place(self, kind: _Kind[StateT]) -> _Place[StateT]:
        if kind not in self._places:
            self._places[kind] = _Place(kind, [] if kind.ended else self._legal(kind.state))
        return self._places[kind]
