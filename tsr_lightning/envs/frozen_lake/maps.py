"""Lakes, drawn from a key or given by hand. Knows letters and nothing of ice.

A lake is a tuple of rows of gymnasium's letters: `S` start, `F` frozen, `H` hole, `G` goal. Cells are counted row by
row from 0, as gymnasium counts them.
"""

from collections.abc import Sequence

from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

Rows = tuple[str, ...]

START, FROZEN, HOLE, GOAL = "SFHG"
ENDS = frozenset({HOLE, GOAL})
# what comes out once in a hundred tries is missed by 1,000 with probability 4e-5
TRIES = 1_000


def random_lake(key: Key, *, size: int, frozen: float, tries: int = TRIES) -> Rows:
    """A square lake whose goal can be reached: each cell frozen with probability `frozen`, start and goal anywhere.

    The law is RAGEN's (size 4, frozen 0.9, random start and goal); the draws are the key's, the same in every process.

    Args:
        key: of this lake.
        size: cells a side, at least 2.
        frozen: share of the cells that are no hole, in [0, 1].
        tries: lakes drawn before giving up.
    """
    cells = size * size
    for attempt in range(tries):
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
        f"frozen is {frozen} with size {size}: none of {tries} random lakes had a way to the goal; "
        "raise frozen or take a smaller size."
    )


def given_lake(desc: Sequence[str]) -> Rows:
    """A lake given by hand, checked."""
    rows = tuple(desc)
    letters = "".join(rows)
    if not letters or len({len(row) for row in rows}) != 1:
        raise ConfigError(f"desc is {list(rows)}: give rows of one length, such as ['SF', 'HG'].")
    if unknown := sorted(set(letters) - set("SFHG")):
        raise ConfigError(f"desc has the letter {unknown[0]!r}: use S start, F frozen, H hole and G goal.")
    if letters.count(START) != 1 or GOAL not in letters:
        raise ConfigError(f"desc is {list(rows)}: it needs one start S and a goal G.")
    if not reachable(rows):
        raise ConfigError(f"desc is {list(rows)}: its goal cannot be reached; open a way around the holes.")
    return rows


def start_cell(rows: Rows) -> int:
    return "".join(rows).index(START)


def reachable(rows: Rows) -> bool:
    """Whether a goal can be walked to from the start."""
    letters, width = "".join(rows), len(rows[0])
    frontier, seen = [start_cell(rows)], set[int]()
    while frontier:
        cell = frontier.pop()
        if cell in seen or letters[cell] == HOLE:
            continue
        if letters[cell] == GOAL:
            return True
        seen.add(cell)
        column = cell % width
        frontier += [cell - 1] * (column > 0) + [cell + 1] * (column < width - 1)
        frontier += [cell - width] * (cell >= width) + [cell + width] * (cell + width < len(letters))
    return False
