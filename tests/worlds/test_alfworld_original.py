"""Ours beside the original engine, where `alfworld` and `textworld[pddl]` are installed (see the benchmark)."""

import json
from pathlib import Path

import pytest

from benchmarks.alfworld_parity import Seconds, compared, speed_up_original
from tests.alfworld_games import DATA, REASON, content, index, write_games
from tsr_lightning.rng import Key
from tsr_lightning.worlds.alfworld.games import GAME

pytest.importorskip("alfworld", reason="alfworld is not installed")
pytest.importorskip("fast_downward", reason="textworld[pddl] is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason=REASON),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # TextWorld leaves files open
]

KINDS = sorted({line["goal_type"] for line in index().values()}) if DATA.exists() else []


@pytest.mark.parametrize("kind", KINDS)
def test_random_steps_beside_the_original_are_equal(kind: str, tmp_path: Path):
    name = [name for name, line in index().items() if line["goal_type"] == kind][-1]
    write_games(tmp_path, [name])
    speed_up_original()
    assert list(compared(tmp_path / name / GAME, 40, Key(0).fold_in(kind), Seconds())) == []


@pytest.mark.exhaustive
def test_every_published_game_beside_the_original_is_equal(tmp_path: Path):
    write_games(tmp_path, index())
    speed_up_original()
    differing = [
        (name, difference)
        for number, name in enumerate(index())
        for difference in compared(tmp_path / name / GAME, 10, Key(number), Seconds())
    ]
    assert differing == []


def test_the_newer_phrasing_beside_the_original_is_equal(tmp_path: Path):
    """The same games with the grammar and domain that the installed alfworld comes with."""
    import alfworld

    data = Path(alfworld.__file__).parent / "data"
    name = next(iter(index()))
    game = content(name) | {
        "pddl_domain": (data / "alfred.pddl").read_text(),
        "grammar": (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", index()[name]["task"].removesuffix(".")),
    }
    path = tmp_path / GAME
    path.write_text(json.dumps(game))
    speed_up_original()
    assert list(compared(path, 60, Key(5), Seconds())) == []
