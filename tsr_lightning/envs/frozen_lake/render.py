"""A lake as text: the grid, the coordinates, or both, in the paper's words or in brief ones.

Symbols are RAGEN's: `P` player, `_` frozen, `O` hole, `G` goal, `X` player in a hole, `√` player on the goal. The
player is drawn over the start. Coordinates are (row, column) from the top left, counted from 0.
"""

from functools import lru_cache
from typing import Literal, get_args

from tsr_lightning.envs.frozen_lake.maps import GOAL, HOLE, Rows
from tsr_lightning.envs.text import PromptStyle

ObservationName = Literal["grid", "coordinates", "both"]
OBSERVATIONS: tuple[str, ...] = get_args(ObservationName)

SYMBOLS = str.maketrans("SFHG", "__OG")
PLAYER = {"S": "P", "F": "P", HOLE: "X", GOAL: "√"}
LEGEND = (
    "The meaning of each symbol in the state is:\n"
    "P: player, _: frozen, O: hole, G: goal, X: player in hole, √: player on goal"
)


def grid(rows: Rows, cell: int) -> str:
    """Rows of symbols without spaces."""
    row, column = divmod(cell, len(rows[0]))
    lines = [line.translate(SYMBOLS) for line in rows]
    lines[row] = lines[row][:column] + PLAYER[rows[row][column]] + lines[row][column + 1 :]
    return "\n".join(lines)


@lru_cache(maxsize=65536)
def picture(rows: Rows, cell: int, observation: ObservationName, prompt_style: PromptStyle) -> str:
    """The state as an observation shows it."""
    if observation == "grid":
        return grid(rows, cell)
    places = _brief_places(rows, cell) if prompt_style.terse else _paper_places(rows, cell)
    if observation == "coordinates":
        return places
    if prompt_style.terse:
        return f"{places}\n{grid(rows, cell)}"
    return f"Coordinates:\n{places}\nGrid Map:\n{grid(rows, cell)}"


def _cells(rows: Rows, letter: str) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(rows) for c, found in enumerate(row) if found == letter]


def _paper_places(rows: Rows, cell: int) -> str:
    holes = ", ".join(map(str, _cells(rows, HOLE))) or "none"
    goals = ", ".join(map(str, _cells(rows, GOAL)))
    return f"Player: {divmod(cell, len(rows[0]))}\nGoal: {goals}\nHoles: {holes}"


def _brief_places(rows: Rows, cell: int) -> str:
    marked = [("P", *divmod(cell, len(rows[0])))]
    marked += [("G", *place) for place in _cells(rows, GOAL)]
    marked += [("O", *place) for place in _cells(rows, HOLE)]
    return "\n".join(f"{symbol} {row} {column}" for symbol, row, column in marked)
