"""The mechanics of Sokoban. Knows no text, no budget and no randomness.

A cell is a number, row * cols + col. Walls and targets are a `Layout`, shared by all states of a level; a `State` is
the player's cell and the sorted cells of the boxes; a `Board` is both. Every layout has an outer wall, so no step
leaves the grid.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

Boxes = tuple[int, ...]  # sorted, so that equal positions are equal tuples
State = tuple[int, Boxes]  # player, boxes

ACTIONS = ("Up", "Down", "Left", "Right")
MAX_BOXES = 8  # of a level: matching boxes to targets goes through every set of targets


@dataclass(frozen=True, slots=True)
class Layout:
    """The walls, the outer ones included, and the targets."""

    rows: int
    cols: int
    walls: frozenset[int]
    targets: Boxes

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """The change of the cell number for each of `ACTIONS`."""
        return (-self.cols, self.cols, -1, 1)


class Board(NamedTuple):
    """A layout, the player and the boxes: a level at its start, or any later state of it."""

    layout: Layout
    player: int
    boxes: Boxes


@lru_cache(maxsize=1024)
def floor(layout: Layout) -> tuple[int, ...]:
    """The cells without a wall, in reading order."""
    return tuple(cell for cell in range(layout.rows * layout.cols) if cell not in layout.walls)


def waves(start: int, free: int, cols: int) -> Iterator[int]:
    """The cells first reached after 0, 1, 2, … steps over the cells of `free`; all are bit masks, inside a border."""
    reached = wave = start
    while wave:
        yield wave
        wave = (wave << 1 | wave >> 1 | wave << cols | wave >> cols) & free & ~reached
        reached |= wave


def spread(start: int, free: int, cols: int) -> int:
    """All cells that can be reached; see `waves`."""
    return reduce(or_, waves(start, free, cols))


def moved(boxes: Boxes, origin: int, destination: int) -> Boxes:
    """The boxes after the one on `origin` moved to `destination`."""
    if len(boxes) == 1:
        return (destination,)
    return tuple(sorted(destination if box == origin else box for box in boxes))


def act(layout: Layout, player: int, boxes: Boxes, step: int) -> State:
    """The state after a step: a walk, a push, or the same state if neither is possible."""
    ahead = player + step
    if ahead in layout.walls:
        return player, boxes
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + step
    if beyond in layout.walls or beyond in boxes:
        return player, boxes
    return ahead, moved(boxes, ahead, beyond)


def legal(layout: Layout, player: int, boxes: Boxes) -> tuple[int, ...]:
    """The indices into `ACTIONS` that change the state."""
    return tuple(
        index for index, step in enumerate(layout.steps) if act(layout, player, boxes, step) != (player, boxes)
    )


def before(layout: Layout, player: int, boxes: Boxes) -> Iterator[State]:
    """The states from which one effective action leads here: `act` reversed, as walks and pulls."""
    for step in layout.steps:
        behind = player - step
        if behind in layout.walls or behind in boxes:
            continue
        yield behind, boxes
        ahead = player + step
        if ahead in boxes:
            yield behind, moved(boxes, ahead, player)


def endings(layout: Layout) -> list[State]:
    """The solved states: every box on a target, the player anywhere else."""
    return [(player, layout.targets) for player in floor(layout) if player not in layout.targets]
