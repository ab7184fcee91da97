"""Data sets of reasoning-gym and games of TextArena, where those packages are installed."""

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT, python_output, tsr

from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError

DATASETS = ["basic_arithmetic", "chain_sum", "gcd", "lcm", "leg_counting", "letter_counting", "number_sorting"]
DATASETS += ["spell_backward", "count_bits", "prime_factorization"]
GAMES = ["2048-v0-raw", "FrozenLake-v0-raw", "Sokoban-v0-raw", "TowerOfHanoi-v0-raw", "Mastermind-v0-raw"]
GAMES += ["LightsOut-v0-raw", "GuessTheNumber-v0-raw", "Blackjack-v0-raw", "Minesweeper-v0-raw", "Bandit-v0-raw"]
GAMES += ["FifteenPuzzle-v0-raw", "Slitherlink-v0-raw"]
REASONING = "tsr_lightning.worlds.reasoning_gym:ReasoningGym-v0"
ARENA = "tsr_lightning.worlds.textarena:TextArena-v0"
MOVES = ["[up]", "[left]", "[A C]", "[1 2 3 4]", "[0 0]", "[5]", "[hit]", "[red]", "nothing"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the packages, at their import


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_data_set_scores_its_own_answers(dataset: str):
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    before = random.getstate()
    env = make_env(REASONING, dataset=dataset, size=20)
    assert random.getstate() == before
    for seed in range(5):
        env.reset(seed=seed)
        assert env.step(env.oracle())[1] == 1.0
    check_branchable(lambda: make_env(REASONING, dataset=dataset, size=20), seeds=range(2))


@pytest.mark.parametrize("game", GAMES)
def test_a_game_can_be_branched(game: str):
    pytest.importorskip("textarena", reason="textarena is not installed")
    before = random.getstate()
    check_branchable(lambda: make_env(ARENA, game=game, max_turns=8), seeds=range(2), turns=8, responses=MOVES)
    assert random.getstate() == before


ODD = ["2 x 3", "2, 3, 7", "×", "", "1e999", "9" * 5000, "[" * 500, "{'a': 1}", "\x00", "½", "None"]


@pytest.mark.parametrize("dataset", DATASETS)
def test_any_answer_has_a_score(dataset: str):
    """Some data sets raise for one that is not of their own form."""
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    env = make_env(REASONING, dataset=dataset, size=5)
    for answer in ODD:
        env.reset(seed=0)
        assert env.step(f"<answer>{answer}</answer>")[1] < 1.0


@pytest.mark.parametrize("game", GAMES)
def test_any_move_is_played_or_refused(game: str):
    pytest.importorskip("textarena", reason="textarena is not installed")
    env = make_env(ARENA, game=game, max_turns=8)
    for move in ODD:
        env.reset(seed=0)
        before = env.state_key()
        *_, info = env.step(f"[{move}]")
        assert info["action_is_valid"] or env.state_key() == before


def test_a_state_has_one_key_in_every_process():
    """Games keep sets, whose order changes with the process."""
    pytest.importorskip("textarena", reason="textarena is not installed")
    code = (
        "from tsr_lightning.envs.make import make_env\n"
        f"env = make_env({ARENA!r}, game='Cryptarithm-v0-raw')\n"
        "env.reset(seed=3)\nprint(env.state_key()[0])"
    )
    keys = {python_output(code, hash_seed=seed).splitlines()[-1] for seed in ("1", "2")}
    assert len(keys) == 1


def test_an_unknown_name_is_refused():
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    with pytest.raises(ConfigError, match=r"ReasoningGym\.dataset is 'no_such'"):
        make_env(REASONING, dataset="no_such")
    pytest.importorskip("textarena", reason="textarena is not installed")
    with pytest.raises(ConfigError, match=r"TextArena\.game is 'NoSuch-v0'"):
        make_env(ARENA, game="NoSuch-v0")


@pytest.mark.parametrize("layer", ["reasoning_gym", "textarena"])
def test_all_ten_train_for_an_epoch_with_beam_search(layer: str, tmp_path: Path):
    pytest.importorskip(layer, reason=f"{layer} is not installed")
    command = [sys.executable, "-W", "ignore", "-m", "tsr_lightning", "fit", "--config", f"{layer}.yaml"]
    command += ["--config", "search/beam.yaml", "--config", "credit/imitate.yaml", "--trainer.max_epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("layer", ["reasoning_gym", "textarena"])
def test_the_layer_of_a_pretrained_model_goes_over_it(
    layer: str, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second command of the file, with another model and for no epoch."""
    pytest.importorskip(layer, reason=f"{layer} is not installed")
    header = (ROOT / "configs" / f"{layer}.yaml").read_text(encoding="utf-8")
    _, line, *_ = re.findall(r"^# {3}tsr (.*)$", header, re.MULTILINE)
    assert "model/smollm2.yaml" in line
    monkeypatch.chdir(tmp_path)
    cli = tsr(
        *(word.removeprefix("configs/") for word in shlex.split(line)),
        *("--model.policy.model", tiny_model("sokoban"), "--trainer.accelerator", "cpu"),
        *("--trainer.max_epochs", "0", "--trainer.num_sanity_val_steps", "0"),
    )
    assert cli.model.policy.spec.adapter is not None
