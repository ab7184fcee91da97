"""The state as text: the grid, the coordinates, or both, in each prompt style.

Symbols and forms of the `paper` prompt style are RAGEN's (github.com/mll-lab-nu/RAGEN, ragen/env/sokoban/env.py and
utils.py); `brief` says the same in fewer tokens.
"""

from functools import lru_cache

from tsr_lightning.envs.sokoban.board import Boxes, Layout
from tsr_lightning.envs.text import ObservationName, PromptStyle

LEGEND = (
    "The meaning of each symbol in the state is:\n"
    "#: wall, _: empty, O: target, √: box on target, X: box, P: player, S: player on target"
)


@lru_cache(maxsize=1024)
def _canvas(layout: Layout) -> tuple[str, ...]:
    """The grid without player and boxes, one string per cell; the last of a row ends with a line break."""
    symbols = ["_"] * (layout.rows * layout.cols)
    for cell in layout.walls:
        symbols[cell] = "#"
    for cell in layout.targets:
        symbols[cell] = "O"
    for cell in range(layout.cols - 1, len(symbols) - 1, layout.cols):
        symbols[cell] += "\n"
    return tuple(symbols)


def grid(layout: Layout, player: int, boxes: Boxes) -> str:
    """The board, one line per row. Player and boxes are never in the last column, which is wall."""
    symbols = list(_canvas(layout))
    for box in boxes:
        symbols[box] = "√" if symbols[box] == "O" else "X"
    symbols[player] = "S" if symbols[player] == "O" else "P"
    return "".join(symbols)


def coordinates(layout: Layout, player: int, boxes: Boxes) -> str:
    """Row and column, from 0, of everything but the walls, as RAGEN lists them."""
    cols, targets = layout.cols, layout.targets
    lines = [f"Board size: {layout.rows} rows x {cols} cols (zero-indexed)."]
    kinds = (
        ("Targets", targets),
        ("Boxes", [box for box in boxes if box not in targets]),
        ("Boxes on target", [box for box in boxes if box in targets]),
        ("Player on target" if player in targets else "Player", (player,)),
    )
    for name, cells in kinds:
        if cells:
            lines.append(f"{name}: {', '.join([f'({cell // cols}, {cell % cols})' for cell in cells])}")
    return "\n".join(lines)


def brief_coordinates(layout: Layout, player: int, boxes: Boxes) -> str:
    """One line per object: symbol, row and column from 0; the player first, the targets last."""
    cols, targets = layout.cols, layout.targets
    lines = [f"{'S' if player in targets else 'P'} {player // cols} {player % cols}\n"]
    lines += [f"{'√' if box in targets else 'X'} {box // cols} {box % cols}\n" for box in boxes]
    lines += [f"O {target // cols} {target % cols}\n" for target in targets]
    return "".join(lines)


def show(layout: Layout, player: int, boxes: Boxes, observation: ObservationName, prompt_style: PromptStyle) -> str:
    """The state as text."""
    if observation == "grid":
        return grid(layout, player, boxes)
    if prompt_style.terse:
        cells = brief_coordinates(layout, player, boxes)
        return cells + grid(layout, player, boxes) if observation == "both" else cells[:-1]
    cells = coordinates(layout, player, boxes)
    return f"Coordinates: \n{cells}\nGrid Map: \n{grid(layout, player, boxes)}" if observation == "both" else cells


def rules(observation: ObservationName, prompt_style: PromptStyle, actions_per_turn: int) -> str:
    """The rules for the system message."""
    if prompt_style.terse:
        return f"Push every X onto an O. Up to {actions_per_turn} actions a turn, separated by ||."
    if not prompt_style.marks:
        places = "" if observation == "grid" else " Places are (row, column), counted from (0, 0) at the top left."
        return (
            "Push every box onto a target. Step against a box to push it one cell in that direction, if the cell "
            f"behind it is free.{places}"
        )
    text = "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets.\n"
    if observation != "grid":
        given = "a symbol grid and the" if observation == "both" else "the"
        text += (
            f"You are provided with {given} zero-indexed coordinates of the player, each box, and each target.\n"
            "Coordinates count rows from the top and columns from the left, from (0, 0).\n"
        )
    return text + (
        "When you are exactly next to a box, you can push it by moving in the same direction.\n"
        "You cannot push a box through a wall, and you cannot pull a box.\n"
        "The answer should be a sequence of actions, like <answer>Right || Right || Up</answer>."
    )
