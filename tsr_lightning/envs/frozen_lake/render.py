"""A lake as text: the grid, the coordinates, or both, in each prompt style.

Symbols are RAGEN's: `P` player, `_` frozen, `O` hole, `G` goal, `X` player in a hole, `√` player on the goal. The
player is drawn over the start. Coordinates are (row, column) from the top left, counted from 0.
"""

from functools import lru_cache

from tsr_lightning.envs.frozen_lake.maps import GOAL, HOLE, Rows
from tsr_lightning.envs.text import ObservationName, PromptStyle, format_answer

SYMBOLS = str.maketrans("SFHG", "__OG")
PLAYER = {"S": "P", "F": "P", HOLE: "X", GOAL: "√"}
LEGEND = (
    "The meaning of each symbol in the state is:\n"
    "P: player, _: frozen, O: hole, G: goal, X: player in hole, √: player on goal"
)
_OBSERVED = {
    "grid": "You see the lake as a grid of symbols.",
    "coordinates": "You see the coordinates (row, column), counted from (0, 0) at the top left.",
    "both": "You see the coordinates (row, column), counted from (0, 0) at the top left, "
    "and the lake as a grid of symbols.",
}


def grid(rows: Rows, cell: int) -> str:
    """Rows of symbols without spaces."""
    row, column = divmod(cell, len(rows[0]))
    lines = [line.translate(SYMBOLS) for line in rows]
    lines[row] = lines[row][:column] + PLAYER[rows[row][column]] + lines[row][column + 1 :]
    return "\n".join(lines)


@lru_cache(maxsize=65536)
def show(rows: Rows, cell: int, observation: ObservationName, prompt_style: PromptStyle) -> str:
    """The state as text."""
    if observation == "grid":
        return grid(rows, cell)
    coordinates = _brief_coordinates(rows, cell) if prompt_style.terse else _coordinates(rows, cell)
    if observation == "coordinates":
        return coordinates
    if prompt_style.terse:
        return f"{coordinates}\n{grid(rows, cell)}"
    return f"Coordinates:\n{coordinates}\nGrid Map:\n{grid(rows, cell)}"


def _cells(rows: Rows, letter: str) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(rows) for c, found in enumerate(row) if found == letter]


def _coordinates(rows: Rows, cell: int) -> str:
    holes = ", ".join(map(str, _cells(rows, HOLE))) or "none"
    goals = ", ".join(map(str, _cells(rows, GOAL)))
    return f"Player: {divmod(cell, len(rows[0]))}\nGoal: {goals}\nHoles: {holes}"


def _brief_coordinates(rows: Rows, cell: int) -> str:
    marked = [("P", *divmod(cell, len(rows[0])))]
    marked += [("G", *place) for place in _cells(rows, GOAL)]
    marked += [("O", *place) for place in _cells(rows, HOLE)]
    return "\n".join(f"{symbol} {row} {column}" for symbol, row, column in marked)


def rules(observation: ObservationName, prompt_style: PromptStyle, actions_per_turn: int, slippery: bool) -> str:
    """The rules for the system message."""
    if prompt_style.terse:
        return "Walk to the goal G, not into a hole O."
    slip = " The ice is slippery: a move may go to one of its two sides instead." if slippery else ""
    if not prompt_style.marks:
        return f"Walk over the ice to the goal, not into a hole.{slip} {_OBSERVED[observation]}"
    return (
        "You are solving the FrozenLake puzzle: walk over the ice to the goal and fall into no hole."
        f"{slip} {_OBSERVED[observation]} Answer with a sequence of actions, such as "
        f"{format_answer(prompt_style, ['Left', 'Up'])}. A turn plays the first {actions_per_turn} of them."
    )
