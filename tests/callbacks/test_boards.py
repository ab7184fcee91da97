"""Boards as pictures: hand-made ones, and those of real environments."""

import gymnasium
import numpy as np
import pytest

import tsr_lightning  # noqa: F401  (registers the environments)
from callbacks.boards import CELL, GAP, board, picture


def test_states_stand_side_by_side():
    shown = picture(["###\n#P_\n", "###\n#_P\nbudget 3"])
    assert shown is not None
    assert shown.shape == (2 * CELL, 6 * CELL + GAP, 3)
    middle = CELL + CELL // 2  # of the second row
    player = shown[middle, middle]
    assert (shown[middle, 5 * CELL + GAP + CELL // 2] == player).all()
    assert not (shown[middle, 2 * CELL + CELL // 2] == player).all()


@pytest.mark.parametrize("texts", [[], ["You are in a kitchen."], ["###\n#P_", "####\n#P__"], ["###\n##"]])
def test_what_has_no_board_has_no_picture(texts: list[str]):
    assert picture(texts) is None


@pytest.mark.parametrize(("env", "rows"), [("tsr/Sokoban-v0", 6), ("tsr/FrozenLake-v0", 4)])
@pytest.mark.parametrize("style", ["bare", "paper", "instruct"])
def test_the_boards_of_the_environments_are_found(env: str, rows: int, style: str):
    made = gymnasium.make(env, prompt_style=style, disable_env_checker=True).unwrapped
    observation, _ = made.reset(seed=3)
    found = board(observation)
    assert found is not None
    assert len(found) == rows
    shown = picture([observation])
    assert shown is not None
    assert shown.dtype == np.uint8
