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


def random_lake(key: Key, *, size: int, frozen: float, min_solution: int = 1) -> Rows:
    """A square lake whose goal can be reached: each cell frozen with probability `frozen`, start and goal anywhere.

    The distribution is RAGEN's (size 4, frozen 0.9, random start and goal), given that the shortest way to the goal has
    at least `min_solution` moves. The draws are the same in every process.
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
        if (shortest_solution(rows) or 0) >= min_solution:
            return rows
    drawn = f"none of {TRIES} random lakes of size {size}"
    if min_solution > 1:
        raise ConfigError(
            f"TextFrozenLake.min_solution is {min_solution}: {drawn} had a path so long; lower it or raise size."
        )
    raise ConfigError(f"TextFrozenLake.frozen is {frozen}: {drawn} had a path to the goal; raise it or lower size.")


def given_lake(desc: Sequence[str]) -> Rows:
    """A given lake, validated."""
    rows = tuple(desc)
    letters = "".join(rows)

    def demand(valid: bool, remedy: str) -> None:
        require(valid, "TextFrozenLake.desc", list(rows), remedy)

    demand(bool(letters) and len({len(row) for row in rows}) == 1, "give rows of one length, such as ['SF', 'HG'].")
    demand(set(letters) <= set("SFHG"), "use the letters S start, F frozen, H hole and G goal.")
    demand(letters.count(START) == 1 and GOAL in letters, "it needs one start S and a goal G.")
    demand(shortest_solution(rows) is not None, "its goal cannot be reached; open a path around the holes.")
    return rows


def start_cell(rows: Rows) -> int:
    return "".join(rows).index(START)


def shortest_solution(rows: Rows) -> int | None:
    """Moves of the shortest way from the start to a goal, without slips; None if there is none."""
    width = len(rows[0]) + 1
    letters = "".join(row + HOLE for row in rows) + HOLE * width  # each edge leads to a hole, index -1 to the last one
    frontier, seen, moves = {letters.index(START)}, set[int](), 0
    while frontier:
        if any(letters[cell] == GOAL for cell in frontier):
            return moves
        seen |= frontier
        around = {cell + step for cell in frontier for step in (-1, 1, -width, width)}
        frontier = {cell for cell in around - seen if letters[cell] != HOLE}
        moves += 1
    return None
