"""Lakes, random or given. Knows nothing of dynamics.

A lake is a tuple of rows of gymnasium's letters: `S` start, `F` frozen, `H` hole, `G` goal. Cells are counted row by
row from 0, as gymnasium counts them.
"""

from collections.abc import Sequence

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key

Rows = tuple[str, ...]

START, FROZEN, HOLE, GOAL = "SFHG"
ENDS = frozenset({HOLE, GOAL})
TRIES = 1_000  # lakes drawn before giving up: misses a lake of probability 0.01 with probability 4e-5


def random_lake(key: Key, *, size: int, frozen: float) -> Rows:
    """A square lake whose goal can be reached: each cell frozen with probability `frozen`, start and goal anywhere.

    The distribution is RAGEN's (size 4, frozen 0.9, random start and goal); the draws are the same in every process.
    """
    cells = size * size
    for attempt in range(TRIES):
        tried = key.fold_in(attempt)
        letters = [FROZEN if tried.uniform(cell) < frozen else HOLE for cell in range(cells)]
        start = int(tried.uniform(cells) * cells)
        goal = int(tried.uniform(cells + 1) * (cells - 1))
        goal += goal >= start  # any cell but the start
        letters[start], letters[goal] = START, GOAL
        text = "".join(letters)
        rows = tuple(text[i : i + size] for i in range(0, cells, size))
        if reachable(rows):
            return rows
    raise ConfigError(
        f"TextFrozenLake.frozen is {frozen}: none of {TRIES} random lakes of size {size} had a path to the goal; "
        "raise it or lower size."
    )


def given_lake(desc: Sequence[str]) -> Rows:
    """A given lake, validated."""
    rows = tuple(desc)
    letters = "".join(rows)

    def demand(valid: bool, remedy: str) -> None:
        require(valid, "TextFrozenLake.desc", list(rows), remedy)

    demand(bool(letters) and len({len(row) for row in rows}) == 1, "give rows of one length, such as ['SF', 'HG'].")
    demand(set(letters) <= set("SFHG"), "use the letters S start, F frozen, H hole and G goal.")
    demand(letters.count(START) == 1 and GOAL in letters, "it needs one start S and a goal G.")
    demand(reachable(rows), "its goal cannot be reached; open a path around the holes.")
    return rows


def start_cell(rows: Rows) -> int:
    return "".join(rows).index(START)


def reachable(rows: Rows) -> bool:
    """True if a path leads from the start to a goal."""
    width = len(rows[0]) + 1
    letters = "".join(row + HOLE for row in rows) + HOLE * width  # each edge leads to a hole, index -1 to the last one
    frontier, seen = [letters.index(START)], set[int]()
    while frontier:
        cell = frontier.pop()
        if letters[cell] == GOAL:
            return True
        if letters[cell] != HOLE and cell not in seen:
            seen.add(cell)
            frontier += (cell - 1, cell + 1, cell - width, cell + width)
    return False
