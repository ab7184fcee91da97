"""`tsr play` at a pseudo-terminal: games, their file, and what is trained on them."""

import io
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import torch
from commands import QUICK, in_folder, tsr
from processes import Forked

from tsr_lightning.cli.command import main
from tsr_lightning.cli.play import configured
from tsr_lightning.engines.local_model import inference_mode
from tsr_lightning.episodes.files import read
from tsr_lightning.episodes.schema import Episode
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.training import games as games_of
from tsr_lightning.training import showing
from tsr_lightning.training.estimates import logprobs_behind

FEW = ("--data.held_out.instances", "2", "--trainer.accelerator", "cpu")
SOKOBAN = ("tsr/Sokoban-v0", *FEW)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a pseudo-terminal."""
    ends = pty.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def play(folder: Path, *lines: str, flags: tuple[str, ...] = SOKOBAN) -> list[Episode]:
    """Types lines and then the end of input, and returns the games that the file has."""
    with in_folder(folder), terminal() as (ours, theirs), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", os.fdopen(os.dup(theirs)))
        os.write(ours, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape") + b"\x04")
        with sys.stdin:
            main(["play", *flags])
    return read(folder / "games.jsonl.gz")[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="module")
def shown(folder: Path) -> str:
    """The output of two games: one is left before its end, one is won by the oracle."""
    said = io.StringIO()
    asked = (
        ":undo",
        "",
        ":policy",
        "hm",
        ":undo",
        ":help",
        ":what",
        "caf\udce9",
        "x" * 99,
        ":legal",
        ":oracle",
        "",
        ":next",
    )
    with redirect_stdout(said):
        play(folder, *asked, *[":oracle", ""] * 5, "hm")
    return said.getvalue()


@pytest.fixture(scope="module")
def games(folder: Path, shown: str) -> list[Episode]:
    return read(folder / "games.jsonl.gz")[1]


def test_a_game_is_a_search_with_all_that_was_asked_and_taken_back(games: list[Episode]):
    policy, typed, oracle = games[0].nodes
    assert [(node.parent, node.demonstrated, node.valid) for node in games[0].nodes] == [
        (None, False, True),
        (None, True, False),
        (None, True, True),
    ]
    assert (typed.text, oracle.fate, policy.fate) == ("hm", "kept", "pruned")
    assert games[0].path == [oracle]
    assert [(game.strategy, game.origin) for game in games] == [("Person", "demonstrated")] * 2
    assert (games[0].ended, games[1].ended) == (None, "succeeded")
    assert oracle.env_score is not None
    assert oracle.env_score > 0


@pytest.mark.parametrize(
    "sentence",
    [
        "this is the first state",
        "nothing is suggested here",
        ":what is no command",
        "that is no text: type it again",
        "of at most 12: shorten",
        "<answer>",
        "The episode has ended: succeeded",
        "The episode is over",
    ],
)
def test_what_cannot_be_done_is_said(sentence: str, shown: str):
    assert sentence in shown


def test_a_typed_response_has_the_probability_that_the_policy_samples_it_with(folder: Path, games: list[Episode]):
    suggested = games[0].nodes[0]
    before = len(games)
    asked = (suggested.text, ":next", ":next", "<answer>Left</answer>")  # the second game has no turn, and is none
    again = play(folder, *asked, flags=(*SOKOBAN, "--instance", str(games[0].instance)))
    assert again[:before] == games
    assert len(again) == before + 2  # further games are added
    [typed] = again[before].nodes
    assert (typed.demonstrated, typed.response) == (True, suggested.response)
    assert typed.logprobs == pytest.approx(suggested.logprobs, abs=1e-4)
    assert sum(typed.logprobs) < -0.01
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(folder / "games.jsonl.gz")])
    assert ended.value.code == 0


def test_an_adapters_dropout_leaves_the_probability_of_a_typed_response_alone():
    spec = PolicySpec(Scratch(32, 1, 2, 64), LoRA(rank=4, dropout=0.5))
    policy = Policy(spec, load_tokenizer(spec, ["a b c"]), critic=False).train()
    for name, weight in policy.named_parameters():
        if "lora_B" in name:  # which are zero in a new adapter
            torch.nn.init.normal_(weight, std=0.5)
    first, again = (logprobs_behind(policy, [([1, 2, 3], [4, 5])], 1.0, 100) for _ in range(2))
    assert torch.equal(first[0], again[0])
    with inference_mode(policy):
        logits = policy.causal_lm(torch.tensor([[1, 2, 3, 4, 5]])).logits[0].float().log_softmax(-1)
    torch.testing.assert_close(first[0], logits[[2, 3], [4, 5]], atol=1e-5, rtol=1e-5)
    assert all(module.training for module in policy.modules())


@pytest.mark.parametrize(("subcommand", "plays"), [("rollout", (showing, "play")), ("play", (games_of, "play_games"))])
def test_episodes_are_played_in_the_precision_of_the_trainer(
    subcommand: str, plays: tuple[ModuleType, str], empty_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    found: list[bool] = []
    monkeypatch.setattr(*plays, lambda *given: found.append(torch.is_autocast_enabled("cpu")))
    run = (subcommand, "--config", "sokoban.yaml", "--trainer.accelerator", "cpu", "--output", "new.jsonl.gz")
    for precision in ("32-true", "bf16-mixed"):
        tsr(*run, "--trainer.precision", precision)
    assert found == [False, True]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "env", ["tsr/FrozenLake-v0", "tsr/WebShop-v0", "tsr/ALFWorld-v0", "tsr/TextWorld-v0", "tests.counter:Counter-v0"]
)
def test_every_environment_is_played(env: str, tmp_path: Path):
    [game] = play(tmp_path, ":oracle", "", ":policy", "", ":undo", flags=(env, *FEW))
    assert [node.fate for node in game.nodes] == ["kept", "pruned" if game.nodes[1].ended is None else "played out"]
    with in_folder(tmp_path), pytest.raises(SystemExit) as ended:
        main(["replay", "games.jsonl.gz"])
    assert ended.value.code == 0


def train(path: Path, *flags: str) -> float:
    """Trains on games, and returns the norm of a gradient."""
    games = ("--data.replay", str(path / "games.jsonl.gz"), "--trainer.max_epochs", "1")
    run = tsr("fit", "--config", "sokoban.yaml", *QUICK, *games, *flags)
    return float(run.trainer.callback_metrics["train/grad_norm_policy"])


SFT = ("--config", "objective/sft.yaml")


@pytest.mark.slow
def test_games_are_trained_on(folder: Path, games: list[Episode], empty_folder: Path):
    assert train(folder, *SFT) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), r"its episodes are demonstrations, and GRPO learns from samples of the policy"),
        ((*SFT, "--model.policy.model", "embedded/frozen_lake"), r"its responses are other tokens than this model's"),
    ],
)
def test_games_that_cannot_be_trained_on_are_refused(
    flags: tuple[str, ...], sentence: str, folder: Path, games: list[Episode], empty_folder: Path
):
    with pytest.raises(ConfigError, match=sentence):
        train(folder, *flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "tsr play needs an environment: tsr play tsr/Sokoban-v0, or tsr play --config FILE"),
        (("sokoban.yaml",), "did you mean tsr play --config sokoban.yaml?"),
        (("tsr/Sokobann-v0",), "did you mean tsr/Sokoban-v0"),
        pytest.param((*SOKOBAN, "--output", "/proc/none/e"), "cannot be written", marks=pytest.mark.exhaustive),
        ((*SOKOBAN, "--data.context_tokens", "512"), "its games were played in another environment, by another model"),
    ],
)
def test_bad_input_is_one_sentence(
    flags: tuple[str, ...], sentence: str, folder: Path, games: list[Episode], capfd: pytest.CaptureFixture[str]
):
    with in_folder(folder), pytest.raises(SystemExit) as ended:
        main(["play", *flags])
    assert ended.value.code == 2
    assert sentence in capfd.readouterr().err.splitlines()[-1]


def test_an_environment_without_a_configuration_gets_a_new_model():
    flags = configured(["mine:Mine-v0", "--instance", "3"])
    assert flags[:2] == ["--config", "common/task.yaml"]
    assert flags[-4:] == ["--data.env", "mine:Mine-v0", "--instance", "3"]
    assert configured(["tsr/SWE-v0"])[1].endswith("swe.yaml")


@pytest.mark.exhaustive
def test_a_person_at_a_terminal_sees_the_prompt_and_what_undo_restores(tmp_path: Path):
    with terminal() as (ours, theirs):
        run = Forked(["play", *SOKOBAN], tmp_path, {"OMP_NUM_THREADS": "1"}, Path(os.ttyname(theirs)))
        first = seen(ours, "turn 1> ")
        os.write(ours, b":oracle\n")
        assert "(the oracle's; an empty line plays it)" in seen(ours, "turn 1> ")
        os.write(ours, b"\n")
        assert "score " in seen(ours, "> ")
        os.write(ours, b":undo\n")
        assert boards(seen(ours, "turn 1> ")) == boards(first)
        os.kill(run.process.pid or 0, signal.SIGINT)  # Ctrl-C ends the game as :quit does
        assert run.wait(60) == 0


def seen(end: int, until: str, seconds: float = 60) -> str:
    """What a terminal shows until it waits at a prompt."""
    shown, deadline = "", time.monotonic() + seconds
    while not shown.endswith(until):
        ready, _, _ = select.select([end], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, shown
        shown += os.read(end, 4096).decode(errors="replace")
    return shown


def boards(shown: str) -> list[str]:
    return re.findall(r"[#_XOP√]{6}", shown)
