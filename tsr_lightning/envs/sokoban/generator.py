"""Levels made by reverse play: a room, the boxes on their targets, and then the game backwards until the solution has
the wanted length.

Every number is `key.uniform(index)`, so a level is the same in every process and with every version of NumPy.
HasOracle by construction: the player can walk the reverse play back.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from tsr_lightning.envs.sokoban.board import MOST_BOXES, Layout, Level, State, before, endings
from tsr_lightning.envs.sokoban.solver import solution_length
from tsr_lightning.envs.validate import whole
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

T = TypeVar("T")

# Room carving as in gym-sokoban (github.com/mpSchrader/gym-sokoban, room_utils.py): a random walk that turns with this
# chance and stamps one of these on every cell it visits, as (row, col) around the cell.
_TURN = 0.35
_STAMPS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
_DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
_STEPS_PER_SIDE = 1.7  # steps of the walk, times rows + cols

_LARGEST = 32  # rows or columns
_LAYER = 1000  # states kept per length of solution; below that, lengths are exact
_PATIENCE = 30  # rooms tried for the wanted length, before a room's longest one will do
_EFFORT = 200_000  # cells and states looked at before giving up: half a second, 3,000 rooms of 6×6
_CHECK_BUDGET = 5_000  # states that the solver may open to check a length that is not known to be exact


@dataclass(frozen=True)
class Difficulty:
    """What levels are wanted.

    Args:
        size: rows and columns, the outer wall included.
        boxes: boxes, and as many targets.
        min_solution: the shortest solution takes at least so many moves (walks and pushes).
        max_solution: and at most so many. Lengths are spread evenly between the two, as far as rooms allow. They are
            exact while no more than a thousand states share a length (one or two boxes on 6×6 always); beyond, a level
            has a solution of at most this many moves, and min_solution holds where the solver can tell.
    """

    size: tuple[int, int] = (6, 6)
    boxes: int = 1
    min_solution: int = 2
    max_solution: int = 10

    def __post_init__(self) -> None:
        for side in self.size:
            whole("size", side, at_least=3)
        for name in ("boxes", "min_solution", "max_solution"):
            whole(name, vars(self)[name])
        rows, cols = self.size
        if max(self.size) > _LARGEST:
            raise ConfigError(f"size is {rows}×{cols}: made levels have at most {_LARGEST} rows and columns.")
        if self.boxes > MOST_BOXES:
            raise ConfigError(f"boxes is {self.boxes}: made levels have at most {MOST_BOXES}.")
        if (rows - 2) * (cols - 2) < 2 * self.boxes + 1:
            raise ConfigError(
                f"size is {rows}×{cols} and boxes {self.boxes}: inside the walls must be room for {2 * self.boxes + 1} "
                "cells, so raise size or lower boxes."
            )
        if self.min_solution > self.max_solution:
            raise ConfigError(
                f"min_solution is {self.min_solution} and max_solution {self.max_solution}: "
                "lower the first or raise the second."
            )


@dataclass(slots=True)
class _Dice:
    """The numbers of a key, one after the other."""

    key: Key
    index: int = 0

    def uniform(self) -> float:
        self.index += 1
        return self.key.uniform(self.index - 1)

    def below(self, count: int) -> int:
        return int(self.uniform() * count)

    def choose(self, items: list[T], count: int) -> list[T]:
        """`count` of the items without repetition, in random order."""
        pool = list(items)
        for place in range(count):
            other = place + self.below(len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]


@lru_cache(maxsize=1024)
def generate(key: Key, difficulty: Difficulty) -> Level:
    """The level of a key.

    Raises:
        ConfigError: if no such level turned up in a bounded number of rooms.
    """
    dice = _Dice(key)
    shortest, longest = difficulty.min_solution, difficulty.max_solution
    wanted = shortest + dice.below(longest - shortest + 1)
    rooms = effort = 0
    while effort < _EFFORT:
        cells = _carve(difficulty.size, dice)
        rooms, effort = rooms + 1, effort + len(cells) + 2 * sum(difficulty.size)
        if len(cells) < 2 * difficulty.boxes + 1:
            continue
        layout = _furnish(cells, difficulty, dice)
        played = _play_back(layout, wanted, dice)
        effort += played.seen
        if played.length < (wanted if rooms <= _PATIENCE else shortest):
            continue
        apart = [state for state in played.states if not set(state[1]) & set(layout.targets)]
        level = Level(layout, *dice.choose(apart or played.states, 1)[0])
        if played.exact or _fits(level, shortest):
            return level
    rows, cols = difficulty.size
    raise ConfigError(
        f"no level of size {rows}×{cols} with boxes {difficulty.boxes}, min_solution {shortest} and max_solution "
        f"{longest} turned up in {rooms} rooms: raise size, or lower boxes or min_solution."
    )


def _carve(size: tuple[int, int], dice: _Dice) -> list[int]:
    """The floor of a room in reading order: connected, since the walk takes single steps."""
    rows, cols = size
    row, col = 1 + dice.below(rows - 2), 1 + dice.below(cols - 2)
    down, right = _DIRECTIONS[dice.below(4)]
    cells = set()
    for _ in range(int(_STEPS_PER_SIDE * (rows + cols))):
        if dice.uniform() < _TURN:
            down, right = _DIRECTIONS[dice.below(4)]
        row, col = min(max(row + down, 1), rows - 2), min(max(col + right, 1), cols - 2)
        for y, x in _STAMPS[dice.below(len(_STAMPS))]:
            if 0 < row + y < rows - 1 and 0 < col + x < cols - 1:
                cells.add((row + y) * cols + col + x)
    return sorted(cells)


def _furnish(cells: list[int], difficulty: Difficulty, dice: _Dice) -> Layout:
    """The room with targets."""
    rows, cols = difficulty.size
    targets = tuple(sorted(dice.choose(cells, difficulty.boxes)))
    return Layout(rows, cols, frozenset(range(rows * cols)) - frozenset(cells), targets)


class _Played(NamedTuple):
    states: list[State]  # all that is known of that length
    length: int  # moves of a solution
    exact: bool  # whether none of them has a shorter one
    seen: int  # states looked at


def _play_back(layout: Layout, wanted: int, dice: _Dice) -> _Played:
    """Breadth-first search in reverse from the solved states: `wanted` moves, or as far as it goes.

    A layer larger than `_LAYER` is thinned at random; what is found beyond may have a shorter solution.
    """
    layer = endings(layout)
    seen = set(layer)
    exact = True
    for length in range(wanted):
        further = []
        for state in layer:
            for earlier in before(layout, *state):
                if earlier not in seen:
                    seen.add(earlier)
                    further.append(earlier)
        if not further:
            return _Played(layer, length, exact, len(seen))
        if len(further) > _LAYER:
            further, exact = dice.choose(further, _LAYER), False
        layer = further
    return _Played(layer, wanted, exact, len(seen))


def _fits(level: Level, shortest: int) -> bool:
    """Whether a level, known to have a solution, has none that is shorter than asked for, as far as can be told."""
    length = solution_length(*level, budget=_CHECK_BUDGET)
    return length is None or length >= shortest
