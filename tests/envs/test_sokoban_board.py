"""The mechanics of Sokoban: a scenario by hand, and random games against a slow reference on characters."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from tsr_lightning.envs.sokoban.board import ACTIONS, Layout, act, before, endings, floor, legal
from tsr_lightning.envs.sokoban.env import SokobanEnv
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.levels import parse_level
from tsr_lightning.envs.sokoban.render import grid
from tsr_lightning.rng import Key

DIRECTIONS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
LEAVES = {"P": "_", "S": "O", "X": "_", "√": "O"}  # what is under a symbol
ENTERS = {"P": {"_": "P", "O": "S"}, "X": {"_": "X", "O": "√"}}


def reference(text: str, action: str) -> tuple[str, float]:
    """Plays an action on the grid as text: the grid after it, and the reward."""
    rows = [list(row) for row in text.split("\n")]
    down, right = DIRECTIONS[action]
    (y, x) = next((y, x) for y, row in enumerate(rows) for x, symbol in enumerate(row) if symbol in "PS")
    ahead, beyond = (y + down, x + right), (y + 2 * down, x + 2 * right)
    reward = -0.1
    if rows[ahead[0]][ahead[1]] in "X√":
        if rows[beyond[0]][beyond[1]] not in "_O":
            return text, reward
        reward += (rows[beyond[0]][beyond[1]] == "O") - (rows[ahead[0]][ahead[1]] == "√")
        rows[ahead[0]][ahead[1]] = LEAVES[rows[ahead[0]][ahead[1]]]
        rows[beyond[0]][beyond[1]] = ENTERS["X"][rows[beyond[0]][beyond[1]]]
    if rows[ahead[0]][ahead[1]] == "#":
        return text, reward
    rows[y][x] = LEAVES[rows[y][x]]
    rows[ahead[0]][ahead[1]] = ENTERS["P"][rows[ahead[0]][ahead[1]]]
    after = "\n".join("".join(row) for row in rows)
    return after, reward + 10 * ("X" not in after)


def test_a_scenario_by_hand() -> None:
    layout, player, boxes = parse_level(
        [
            "######",
            "#@$ .#",
            "#  $ #",
            "#.   #",
            "######",
        ],
        "by hand",
    )
    assert (layout.rows, layout.cols, layout.targets) == (5, 6, (10, 19))
    assert (player, boxes) == (7, (8, 15))
    up, down, left, right = layout.steps
    assert act(layout, 7, boxes, up) == (7, boxes)  # a wall
    assert act(layout, 7, boxes, left) == (7, boxes)
    assert act(layout, 7, boxes, down) == (13, boxes)  # a walk
    assert act(layout, 7, boxes, right) == (8, (9, 15))  # a push
    assert act(layout, 8, (9, 15), right) == (9, (10, 15))  # onto the target
    assert act(layout, 9, (10, 15), right) == (9, (10, 15))  # a box against a wall
    assert act(layout, 9, (10, 15), down) == (15, (10, 21))  # another box
    assert act(layout, 9, (15, 21), down) == (9, (15, 21))  # two boxes in a row cannot be pushed
    assert [ACTIONS[index] for index in legal(layout, player, boxes)] == ["Down", "Right"]


@given(seed=st.integers(0, 10_000), boxes=st.integers(1, 3), actions=st.lists(st.sampled_from(ACTIONS), max_size=60))
def test_random_games_equal_the_reference(seed: int, boxes: int, actions: list[str]) -> None:
    env = SokobanEnv(boxes=boxes, observation="grid", prompt_style="brief", max_turns=100, max_actions=100)
    text = env.reset(seed=seed)[0].rsplit("\n", 1)[0]
    for action in actions:
        expected, reward = reference(text, action)
        observation, got, terminated, _, info = env.step(f"<answer>{action}</answer>")
        assert observation.rsplit("\n", 1)[0] == expected
        assert abs(got - reward) < 1e-9
        assert info["action_is_effective"] == (expected != text)
        assert terminated == info["success"] == ("X" not in expected)
        if terminated:
            break
        text = expected


@given(seed=st.integers(0, 1_000), boxes=st.integers(1, 3))
def test_reverse_play_is_the_inverse_of_actions(seed: int, boxes: int) -> None:
    level = generate(Key(seed), Difficulty(boxes=boxes))
    layout, state = level.layout, (level.player, level.boxes)
    for place in range(20):
        assert all(
            state in {act(layout, *earlier, step) for step in layout.steps} for earlier in before(layout, *state)
        )
        options = [act(layout, *state, layout.steps[index]) for index in legal(layout, *state)]
        assert all(state in set(before(layout, *further)) for further in options)
        state = options[Key(seed).bits(place) % len(options)]


def test_endings_have_every_place_of_the_player() -> None:
    layout, _, _ = parse_level(["#####", "#@$.#", "#  ##", "#####"], "by hand")
    assert endings(layout) == [(cell, layout.targets) for cell in floor(layout) if cell not in layout.targets]
    assert [cell for cell, _ in endings(layout)] == [6, 7, 11, 12]


def test_a_layout_is_hashable_and_can_be_pickled() -> None:
    layout, player, boxes = generate(Key(3), Difficulty())
    copy = pickle.loads(pickle.dumps(layout))
    assert copy == layout
    assert hash(copy) == hash(layout)
    assert grid(copy, player, boxes) == grid(layout, player, boxes)
    assert Layout(6, 6, layout.walls, (layout.targets[0] + 1,)) != layout
