"""Boards that an environment writes as text, as pictures: the states of an episode side by side. Knows no Lightning."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CELL, GAP = 12, 6  # pixels
_LETTERS = r"[#_XOP√SG]"  # of Sokoban and FrozenLake
_BOARD = re.compile(rf"^{_LETTERS}{{3,}}$(?:\n^{_LETTERS}{{3,}}$)+", re.MULTILINE)
_COLOURS = {
    "#": (90, 90, 90),  # wall
    "_": (245, 245, 240),  # floor, ice
    "X": (190, 120, 40),  # box; in FrozenLake the player in a hole
    "O": (230, 90, 90),  # target; hole
    "√": (70, 160, 70),  # box on its target; the player at the goal
    "P": (60, 110, 220),  # player
    "S": (140, 100, 220),  # player on a target
    "G": (240, 200, 60),  # goal
}


def board(text: str) -> list[str] | None:
    """The rows of the board in an observation; None where there is none."""
    found = _BOARD.search(text)
    rows = found[0].split("\n") if found else []
    return rows if len({len(row) for row in rows}) == 1 else None


def picture(observations: Sequence[str]) -> NDArray[np.uint8] | None:
    """The boards of an episode in a row: [height, width, 3]; None where its observations have none, or of other sizes.

    Args:
        observations: in their order.
    """
    boards = [rows for rows in map(board, observations) if rows is not None]
    if not boards or len({(len(rows), len(rows[0])) for rows in boards}) > 1:
        return None
    drawn = [_drawn(rows) for rows in boards]
    gap = np.full((drawn[0].shape[0], GAP, 3), 255, dtype=np.uint8)
    return np.concatenate([part for each in drawn for part in (each, gap)][:-1], axis=1)


def _drawn(rows: Sequence[str]) -> NDArray[np.uint8]:
    cells = np.array([[_COLOURS[letter] for letter in row] for row in rows], dtype=np.uint8)
    pixels = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
    pixels[::CELL] = pixels[:, ::CELL] = 255  # lines between the cells
    return pixels
