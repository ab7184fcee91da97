"""Push distances, deadlocks and the score, against the whole state space of small levels."""

from collections import deque
from collections.abc import Iterator

import pytest

from tsr_lightning.envs.sokoban.board import Boxes, Layout, State, act, endings, floor
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.levels import parse_level
from tsr_lightning.envs.sokoban.score import WALK_WEIGHT, distances, frozen, matching, score
from tsr_lightning.rng import Key

SEEDS = range(40)


def states(layout: Layout, boxes: int) -> Iterator[State]:
    """Every state of a layout with one or two boxes, reachable or not."""
    cells = floor(layout)
    for first in cells:
        for second in cells if boxes == 2 else (first,):
            if boxes == 2 and second <= first:
                continue
            placed: Boxes = (first, second)[:boxes]
            for player in cells:
                if player not in placed:
                    yield player, placed


def fewest_pushes(layout: Layout, all_states: list[State]) -> dict[State, int]:
    """The fewest pushes to a solved state by relaxing every edge until nothing changes: slow and obvious."""
    pushes = dict.fromkeys(endings(layout), 0)
    changed = True
    while changed:
        changed = False
        for state in all_states:
            for step in layout.steps:
                further = act(layout, *state, step)
                if further == state or further not in pushes:
                    continue
                cost = pushes[further] + (further[1] != state[1])
                if cost < pushes.get(state, 1 << 30):
                    pushes[state] = cost
                    changed = True
    return pushes


def level(*rows: str) -> tuple[Layout, int, Boxes]:
    return parse_level(rows, "by hand")


@pytest.mark.parametrize("seed", SEEDS)
def test_one_box_is_scored_exactly(seed: int) -> None:
    layout = generate(Key(seed), Difficulty()).layout
    all_states = list(states(layout, 1))
    truth = fewest_pushes(layout, all_states)
    known = distances(layout)
    for state in all_states:
        matched = matching(known, *state)
        assert (None if matched is None else matched[0]) == truth.get(state)
        value = score(layout, *state)
        assert 0 <= value <= 1
        assert (value == 1) == (state[1] == layout.targets)
        assert (value == 0) == (state not in truth)
        if truth.get(state):
            # 1 - (pushes + walk / 100) / span, with a walk below 100
            assert -1e-9 < (1 - value) * known.span - truth[state] < 1
    assert known.dead == {box for box in floor(layout) if not any(state[1] == (box,) for state in truth)}


@pytest.mark.parametrize("seed", range(12))
def test_with_two_boxes_no_solvable_state_scores_0_and_pushes_are_a_lower_bound(seed: int) -> None:
    layout = generate(Key(seed).fold_in("two"), Difficulty(boxes=2)).layout
    all_states = list(states(layout, 2))
    truth = fewest_pushes(layout, all_states)
    known = distances(layout)
    for state in all_states:
        value = score(layout, *state)
        assert 0 <= value <= 1
        assert (value == 1) == (state[1] == layout.targets)
        if state in truth:
            matched = matching(known, *state)
            assert matched is not None
            assert matched[0] <= truth[state]
            assert value > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_push_nearer_to_the_solution_scores_higher_and_greedy_play_solves_one_box(seed: int) -> None:
    layout, player, boxes = generate(Key(seed), Difficulty())
    truth = fewest_pushes(layout, list(states(layout, 1)))
    for state, pushes in truth.items():
        for step in layout.steps:
            further = act(layout, *state, step)
            if truth.get(further, pushes) < pushes:
                assert score(layout, *further) > score(layout, *state)
    state = (player, boxes)
    while score(layout, *state) < 1:  # each step must be strictly better, so this ends
        best = max((act(layout, *state, step) for step in layout.steps), key=lambda further: score(layout, *further))
        assert score(layout, *best) > score(layout, *state)
        state = best


@pytest.mark.parametrize("seed", range(12))
def test_the_score_rises_with_every_push_of_a_shortest_solution(seed: int) -> None:
    layout, player, boxes = generate(Key(seed).fold_in("two"), Difficulty(boxes=2))
    truth = fewest_pushes(layout, list(states(layout, 2)))
    known = distances(layout)
    first = matching(known, player, boxes)
    assert first is not None
    if truth[player, boxes] > first[0]:
        pytest.skip("the boxes block each other: every solution has a push away from a target")
    state = (player, boxes)
    while truth[state]:
        queue, seen = deque([state]), {state}  # walk to wherever the next push of such a solution is made
        while True:
            here = queue.popleft()
            options = [act(layout, *here, step) for step in layout.steps]
            pushed = [further for further in options if truth.get(further, 99) < truth[state]]
            if pushed:
                break
            queue.extend(further for further in options if further[1] == state[1] and further not in seen)
            seen.update(options)
        assert score(layout, *pushed[0]) > score(layout, *state)
        state = pushed[0]
    assert score(layout, *state) == 1


def test_the_score_by_hand() -> None:
    layout, player, boxes = level(
        "#######",
        "#     #",
        "#@  $.#",
        "#     #",
        "#######",
    )
    # the farthest that a box can come from is column 2 of the middle row, 3 pushes away: in column 1 there is no room
    # behind it, and a box in the upper or lower row never leaves it
    assert distances(layout).span == 1 + 3
    # 1 push, and 2 steps of the player to column 3
    assert score(layout, player, boxes) == 1 - (1 + 2 * WALK_WEIGHT) / 4
    assert score(layout, 17, boxes) == 1 - 1 / 4
    assert score(layout, 18, (19,)) == 1


def test_a_push_needs_room_behind_the_box() -> None:
    layout, player, boxes = level(
        "######",
        "#$ .@#",
        "#    #",
        "######",
    )
    assert score(layout, player, boxes) == 0  # two cells away, and no way to get behind it
    assert {7, 10, 13, 14, 15, 16} == set(distances(layout).dead)  # its own row has room at 8 and 9 only
    layout, player, boxes = level(
        "#######",
        "#.$@  #",
        "#######",
    )
    assert score(layout, player, boxes) > 0
    layout, player, boxes = level(
        "#######",
        "#.@$  #",
        "#######",
    )
    assert score(layout, player, boxes) == 0  # a box between: the player is on the wrong side for good


def test_freeze_deadlocks() -> None:
    layout, _, _ = level(
        "#######",
        "#     #",
        "# $ $ #",
        "#  .  #",
        "#  .@ #",
        "#######",
    )
    cell = layout.cols
    dead = distances(layout).dead
    # side by side on the upper wall: neither can move up or down, nor sideways into the other
    assert frozen(layout, dead, (cell + 2, cell + 3))
    # a box off target by itself in the open
    assert not frozen(layout, dead, (2 * cell + 2, 2 * cell + 4))
    # next to each other in the open: each can move up and down
    assert not frozen(layout, frozenset(), (2 * cell + 2, 2 * cell + 3))
    # both on their targets and unable to move: that is no deadlock
    solid, _, _ = level("####", "#..#", "#$$#", "#@ #", "####")
    assert not frozen(solid, frozenset(), solid.targets)
    # one on its target and one off, holding each other: that is one
    mixed, _, _ = level("#####", "#. @#", "# $$#", "#. ##", "#####")
    assert frozen(mixed, frozenset(), (6, 7))


def test_each_box_has_a_target_of_its_own() -> None:
    layout, player, boxes = level(
        "#########",
        "#@  .   #",
        "# $  $  #",
        "#      .#",
        "#########",
    )
    # the left box to the upper target: 2 right, 1 up; the right box to the lower one: 2 right, 1 down. The other way
    # round: 6 for the left box, 2 for the right one, which is nearer to the upper target
    assert matching(distances(layout), player, boxes) == (6, (0, 1))
    # two boxes along the upper wall: only one can have the upper target, and neither gets down to the other
    assert score(layout, player, (11, 12)) == 0
