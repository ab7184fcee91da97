"""Exact shortest solutions in moves (walks and pushes alike), for small levels.

A plan is a function of the state alone, never of earlier calls: a demonstration must be the same in a resumed run. So
only two things are cached, both pure: the distances of all states of a level with few states, which later calls look
up; and the plans that A* found elsewhere.
"""

from collections import deque
from functools import lru_cache
from heapq import heappop, heappush
from math import comb

from tsr_lightning.envs.sokoban.board import Boxes, Layout, State, act, before, endings, floor
from tsr_lightning.envs.sokoban.score import distances, frozen, matching

TABLE_STATES = 5_000  # levels of at most so many states get a table: two boxes on 6×6, some milliseconds
BUDGET = 20_000  # states that A* opens before it gives up, about a second


def plan(layout: Layout, player: int, boxes: Boxes, budget: int = BUDGET) -> tuple[int, ...] | None:
    """A shortest solution as indices into `ACTIONS`; None if there is none, or none was found within the budget."""
    cells, count = len(floor(layout)), len(layout.targets)
    if comb(cells, count) * (cells - count) <= TABLE_STATES:
        return _descend(layout, player, boxes)
    return _search(layout, player, boxes, budget)


@lru_cache(maxsize=256)
def _table(layout: Layout) -> dict[State, int]:
    """The moves left in every solvable state: breadth-first search in reverse from the solved ones."""
    left: dict[State, int] = dict.fromkeys(endings(layout), 0)
    queue = deque(left)
    while queue:
        state = queue.popleft()
        for earlier in before(layout, *state):
            if earlier not in left:
                left[earlier] = left[state] + 1
                queue.append(earlier)
    return left


def _descend(layout: Layout, player: int, boxes: Boxes) -> tuple[int, ...] | None:
    """A shortest solution from the table: among equally good actions the first of `ACTIONS`."""
    table = _table(layout)
    left = table.get((player, boxes))
    if left is None:
        return None
    actions = []
    while left:
        for index, step in enumerate(layout.steps):
            state = act(layout, player, boxes, step)
            if table.get(state) == left - 1:
                actions.append(index)
                (player, boxes), left = state, left - 1
                break
    return tuple(actions)


@lru_cache(maxsize=4096)
def _search(layout: Layout, player: int, boxes: Boxes, budget: int) -> tuple[int, ...] | None:
    """A* with the pushes of the best matching as its bound, without states known to be lost."""
    known = distances(layout)
    start = (player, boxes)
    matched = matching(known, player, boxes)
    if matched is None:
        return None
    came: dict[State, tuple[State, int]] = {}
    cost = {start: 0}
    tick = 0  # among equal bounds the newest first, as in depth-first search
    heap: list[tuple[int, int, State]] = [(matched[0], tick, start)]
    opened: set[State] = set()
    while heap and len(opened) < budget:
        _, _, state = heappop(heap)
        if state in opened:
            continue
        opened.add(state)
        if state[1] == layout.targets:
            actions = []
            while state != start:
                state, index = came[state]
                actions.append(index)
            return tuple(reversed(actions))
        for index, step in enumerate(layout.steps):
            further = act(layout, *state, step)
            if further == state or further in opened or cost[state] + 1 >= cost.get(further, 1 << 60):
                continue
            matched = matching(known, *further)
            pushed = further[1] != state[1]
            if matched is None or (pushed and frozen(layout, known.dead, further[1])):
                continue
            cost[further] = cost[state] + 1
            came[further] = (state, index)
            tick -= 1
            heappush(heap, (cost[further] + matched[0], tick, further))
    return None
