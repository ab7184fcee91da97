"""The noise of TextArena's games, with a game of a few lines in place of the package."""

import enum
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.rng import Key
from tsr_lightning.worlds.textarena import TextArena


class ObservationType(enum.Enum):
    """As TextArena's."""

    PLAYER_ACTION = 1
    GAME_MESSAGE = 2


class Dice:
    """A game that rolls at every turn."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(error_count=0, game_info={0: {"invalid_move": False}})

    def reset(self, num_players: int, seed: int) -> None:
        self.rolls: list[int] = []

    def get_observation(self) -> tuple[int, list[Any]]:
        return 0, [(0, f"rolled {self.rolls}", ObservationType.GAME_MESSAGE)]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.rolls.append(random.randrange(1_000_000))
        return False, {}


@pytest.fixture
def dice(monkeypatch: pytest.MonkeyPatch) -> TextArena:
    package = ModuleType("textarena")
    vars(package).update(ObservationType=ObservationType, make=lambda game: Dice())
    monkeypatch.setitem(sys.modules, "textarena", package)
    return TextArena("Dice-v0", max_turns=6)


def rolls(env: TextArena, turns: int) -> list[str]:
    return [env.step("[roll]")[0].rpartition(" ")[2] for _ in range(turns)]


def test_every_turn_draws_numbers_of_its_own(dice: TextArena) -> None:
    dice.reset(seed=0)
    dice.reseed(Key(1))
    begun = dice.get_state()
    rolled = rolls(dice, 4)
    assert len(set(rolled)) == 4
    assert dice.get_state().draws == 4
    dice.set_state(begun)
    assert rolls(dice, 4) == rolled


def test_it_can_be_branched(dice: TextArena) -> None:
    check_branchable(dice, seeds=range(2), responses=["[roll]"], noisy=True)
