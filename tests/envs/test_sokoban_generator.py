"""Generated levels: the same in every process, solvable, and of the given difficulty."""

from collections import Counter
from pathlib import Path

import pytest
from commands import python_output

from tsr_lightning.envs.sokoban.board import Board, Boxes, before, floor
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.render import grid
from tsr_lightning.envs.sokoban.solver import plan
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

ROOT = Path(__file__).resolve().parents[2]

PRINT_LEVELS = """
from tsr_lightning.rng import Key
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.render import grid
for seed in range(40):
    print(grid(*generate(Key(seed), Difficulty())))
    print(grid(*generate(Key(seed), Difficulty(size=(7, 8), boxes=2, max_solution=16))))
"""

PINNED = """\
######
###_O#
####_#
#_X__#
#__P_#
######"""


def generated(seed: int, difficulty: Difficulty) -> Board:
    return generate(Key(seed), difficulty)


def test_default_levels_have_evenly_spread_solution_lengths() -> None:
    lengths = Counter(len(plan(*generated(seed, Difficulty())) or ()) for seed in range(900))
    assert sorted(length for length in lengths if length is not None) == list(range(2, 11))
    assert None not in lengths
    # expected 100 each, with a standard deviation of 9.4
    assert all(65 <= count <= 135 for count in lengths.values())


def test_rooms_have_inner_walls_and_differ() -> None:
    levels = [generated(seed, Difficulty()) for seed in range(400)]
    cells = [len(floor(level.layout)) for level in levels]
    assert min(cells) >= 4
    assert 9 < sum(cells) / len(cells) < 14  # of 16
    assert len(set(cells)) >= 8
    assert len(set(levels)) >= 380  # small rooms repeat


@pytest.mark.parametrize(
    "difficulty",
    [
        Difficulty(),
        Difficulty(size=(3, 5), min_solution=1),
        Difficulty(size=(5, 9), min_solution=6, max_solution=12),
        Difficulty(boxes=2, min_solution=5, max_solution=20),
        Difficulty(boxes=3, max_solution=8),
        Difficulty(size=(8, 8), boxes=2, min_solution=10, max_solution=10),
        Difficulty(size=(10, 10), boxes=4, min_solution=8, max_solution=12),
        Difficulty(min_solution=14, max_solution=40),
    ],
    ids=str,
)
def test_levels_are_closed_solvable_and_of_the_given_difficulty(difficulty: Difficulty) -> None:
    rows, cols = difficulty.size
    for seed in range(12):
        level = generated(seed, difficulty)
        layout = level.layout
        assert (layout.rows, layout.cols) == difficulty.size
        assert len(layout.targets) == len(level.boxes) == len(set(level.boxes)) == difficulty.boxes
        assert level.boxes == tuple(sorted(level.boxes))
        edge = {cell for cell in range(rows * cols) if cell // cols in (0, rows - 1) or cell % cols in (0, cols - 1)}
        assert edge <= layout.walls
        assert not layout.walls & {level.player, *level.boxes, *layout.targets}
        assert level.player not in level.boxes
        empty: Boxes = ()
        walked, unseen = {level.player}, [(level.player, empty)]  # the floor is one room
        while unseen:
            for state in before(layout, *unseen.pop()):
                if state[0] not in walked:
                    walked.add(state[0])
                    unseen.append(state)
        assert walked == set(floor(layout))
        solution = plan(*level, budget=5_000)
        if difficulty.boxes <= 2:
            assert solution is not None
        if solution is not None:
            assert difficulty.min_solution <= len(solution) <= difficulty.max_solution


def test_a_level_is_pinned() -> None:
    """Seeds must go on naming the same levels: policies were trained on them, and levels are held out by them."""
    assert grid(*generated(0, Difficulty())) == PINNED


def test_each_key_has_its_own_level() -> None:
    assert generated(1, Difficulty()) == generated(1, Difficulty())
    assert generated(1, Difficulty()) != generated(2, Difficulty())


@pytest.mark.slow
def test_another_process_generates_the_same_levels() -> None:
    printed = {salt: python_output(PRINT_LEVELS, hash_seed=salt) for salt in ("1", "2")}
    assert printed["1"] == printed["2"]
    large = Difficulty(size=(7, 8), boxes=2, max_solution=16)
    here = [grid(*generated(seed, difficulty)) + "\n" for seed in range(40) for difficulty in (Difficulty(), large)]
    assert printed["1"] == "".join(here)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": (2, 6)}, "size is 2: give a whole number of at least 3."),
        ({"size": (6, 40)}, "size is (6, 40): generated levels have at most 32 rows and columns."),
        ({"boxes": 0}, "boxes is 0: give a whole number of at least 1."),
        ({"boxes": 9, "size": (12, 12)}, "boxes is 9: generated levels have at most 8."),
        ({"boxes": 1.5}, "boxes is 1.5: give a whole number of at least 1."),
        ({"boxes": 2, "size": (4, 4)}, "size is (4, 4): 2 boxes need 5 cells inside the walls"),
        ({"min_solution": 7, "max_solution": 6}, "min_solution is 7: max_solution is 6; lower the first"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Difficulty(**settings)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_difficulty_that_no_room_can_hold_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"min_solution is 60: none of \d+ rooms of size 6×6 with 1 boxes had a solution of 60 to 70"
    ):
        generated(0, Difficulty(min_solution=60, max_solution=70))
    with pytest.raises(ConfigError, match="raise size, or lower boxes or min_solution"):
        generated(0, Difficulty(size=(3, 5), min_solution=2))  # in a corridor of three cells the box is pushed once
