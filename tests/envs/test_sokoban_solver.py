"""The solver, its table and its A*, against plain breadth-first search."""

from collections import deque

import pytest

from tsr_lightning.envs.sokoban.board import Boxes, Layout, act
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.levels import parse_level
from tsr_lightning.envs.sokoban.solver import _search, plan
from tsr_lightning.rng import Key

UNLIMITED = 1 << 30


def plain_search(layout: Layout, player: int, boxes: Boxes) -> int | None:
    """Moves of a shortest solution, forward and layer by layer."""
    queue, left = deque([(player, boxes)]), {(player, boxes): 0}
    while queue:
        state = queue.popleft()
        if state[1] == layout.targets:
            return left[state]
        for step in layout.steps:
            further = act(layout, *state, step)
            if further not in left:
                left[further] = left[state] + 1
                queue.append(further)
    return None


def random_walk(layout: Layout, player: int, boxes: Boxes, key: Key, actions: int) -> tuple[int, Boxes]:
    for place in range(actions):
        player, boxes = act(layout, player, boxes, layout.steps[key.bits(place) % 4])
    return player, boxes


@pytest.mark.parametrize("boxes", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_table_and_search_find_shortest_solutions(seed: int, boxes: int) -> None:
    level = generate(Key(seed).fold_in("solver"), Difficulty(boxes=boxes))
    for state in ((level.player, level.boxes), random_walk(*level, Key(seed), actions=8)):
        shortest = plain_search(level.layout, *state)
        found = plan(level.layout, *state)
        searched = _search(level.layout, *state, UNLIMITED)
        for solution in (found, searched):
            if shortest is None:
                assert solution is None
                continue
            assert solution is not None
            assert len(solution) == shortest
            player, placed = state
            for index in solution:
                player, placed = act(level.layout, player, placed, level.layout.steps[index])
            assert placed == level.layout.targets


def test_search_finds_a_shortest_solution_of_three_boxes() -> None:
    level = generate(Key(5), Difficulty(boxes=3, min_solution=8, max_solution=14))
    found = plan(*level)
    assert found is not None
    assert len(found) == plain_search(*level)


def test_along_a_plan_the_next_plan_is_one_move_shorter() -> None:
    layout, player, boxes = generate(Key(8), Difficulty(min_solution=9))
    left = plain_search(layout, player, boxes)
    assert left is not None
    while left:
        found = plan(layout, player, boxes)
        assert found is not None
        assert len(found) == left
        player, boxes = act(layout, player, boxes, layout.steps[found[0]])
        left -= 1
    assert plan(layout, player, boxes) == ()


def test_unsolvable_levels_and_exhausted_budgets_have_no_plan() -> None:
    lost = parse_level(["######", "#$  .#", "#  @ #", "#    #", "######"], "by hand")
    assert plan(*lost) is None
    rows = [
        "##########",
        "#@       #",
        "# $  $   #",
        "#    $   #",
        "#  $     #",
        "#        #",
        "#       .#",
        "#     ...#",
    ]
    large = parse_level([*rows, "##########"], "by hand")
    assert plan(*large, budget=10) is None
