"""The environment: prompts, rewards, oracle, hostile input, and the contracts of gymnasium and search."""

import random
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from textworld_games import KINDS, game_cache, make

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle, PreparesInstances, fingerprint
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.rng import Key
from tsr_lightning.worlds.textworld.env import TextWorldEnv
from tsr_lightning.worlds.textworld.interpreter import Interpreters, interpreters
from tsr_lightning.worlds.textworld.spoken import refusal

SETTINGS: list[dict[str, Any]] = [
    {},
    {**KINDS["w4-o6-q8"], "score": "oracle", "history": 2, "admissible": True},
    {**KINDS["simple"], "prompt_style": "game", "surroundings": False},
    {**KINDS["coin_collector"], "prompt_style": "brief"},
    {**KINDS["treasure_hunter"], "prompt_style": "paper", "reward": "dense"},
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return game_cache(tmp_path_factory)


def test_it_is_branchable(cache: Path) -> None:
    kwargs = {**SETTINGS[1], "cache": str(cache)}
    report = check_branchable("tsr/TextWorld-v0", kwargs=kwargs, noisy=False, seeds=[0], turns=2, keys=1)
    assert report.skipped == ()


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_branchable_at_length(cache: Path, settings: dict[str, Any]) -> None:
    kwargs = {**settings, "cache": str(cache)}
    assert check_branchable("tsr/TextWorld-v0", kwargs=kwargs, noisy=False).skipped == ()


def test_it_is_registered_and_implements_the_contracts(cache: Path) -> None:
    env = gymnasium.make("tsr/TextWorld-v0", cache=str(cache), game_count=1).unwrapped
    assert isinstance(env, TextWorldEnv)
    for contract in (Branchable, HasLegalActions, HasOracle, PreparesInstances):
        assert isinstance(env, contract)
    assert gymnasium.spec("tsr/TextWorld-v0").max_episode_steps is None
    check_env(env, skip_render_check=True)


def test_the_guides_prompt(cache: Path) -> None:
    env = make(cache)
    observation, _ = env.reset(seed=1)
    assert env.instructions.startswith("You are an expert TextWorld game solver.")
    assert env.instructions.endswith(env.goal(env.state.game))
    lines = observation.splitlines()
    assert lines[0].startswith("current state: You are now in the ")
    assert lines[1].startswith("-= ")
    assert "You are carrying nothing." in lines
    assert observation.endswith("\n\nyour action: ")
    assert "$" not in observation  # of the banner
    assert ">" not in observation  # of the interpreter's prompt
    assert "Admissible" not in observation


def test_admissible_commands_and_history_by_arguments(cache: Path) -> None:
    env = make(cache, prompt_style="game", admissible=True, history=1, surroundings=False)
    first, _ = env.reset(seed=1)
    assert first.endswith(f"Admissible commands: {', '.join(env.legal_actions())}.")
    second, *_ = env.step("inventory")
    assert "> inventory\nYou are carrying nothing." in second
    assert second.startswith(env.goal(env.state.game))


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_wins_in_as_many_turns_as_its_plan_and_dense_rewards_sum_to_one(cache: Path, kind: str) -> None:
    env = make(cache, kind, reward="dense", score="oracle")
    env.reset(seed=0)
    left = len(env.plan(env.state.game) or ())
    total = 0.0
    while True:
        assert env.score() == 1 / (1 + left)
        _, reward, terminated, _, info = env.step(env.oracle())
        total += reward
        left -= 1
        if terminated:
            break
    assert info["success"]
    assert (left, env.score(), total) == (0, 1.0, pytest.approx(1.0))


def test_a_dense_reward_is_one_share_for_each_milestone(cache: Path) -> None:
    """The Guide's normalisation: each intermediate reward over the number of positive ones."""
    env = make(cache, "simple")
    env.reset(seed=0)
    rewards = []
    while not env.has_ended():
        rewards.append(env.step(env.oracle())[1])
    positive = [reward for reward in rewards if reward > 0]
    assert positive == [pytest.approx(1 / len(positive))] * len(positive)
    assert len(positive) > 5


def test_the_oracle_plans_again_after_detours(cache: Path) -> None:
    for kind in KINDS:
        env = make(cache, kind, max_turns=100)
        env.reset(seed=0)
        for turn in range(8):
            env.step(env.oracle(1.0, Key(turn)))
            if env.has_ended():
                break
        while not env.has_ended():
            *_, info = env.step(env.oracle())
        assert info["success"] or env.state.game.lost


def test_a_lost_game_ends_without_success(cache: Path) -> None:
    env = make(cache, "treasure_hunter", max_turns=200, score="oracle")
    for seed in range(4):
        env.reset(seed=seed)
        wrong = env.state.game
        *_, quest = [next(iter(quest.fail_events)) for quest in _quests(env)]
        thing = _infos(env)[quest.condition.preconditions[0].arguments[0].name].name
        for turn in range(150):
            takes = [command for command in env.legal_actions() if command.startswith("take") and thing in command]
            opens = [command for command in env.legal_actions() if command.startswith(("open", "unlock"))]
            moves = [command for command in env.legal_actions() if command.startswith("go ")]
            rng = random.Random(turn)
            command = takes[0] if takes else rng.choice(opens if opens and rng.random() < 0.7 else moves)
            _, reward, terminated, _, info = env.step(command)
            if takes or terminated:
                break
        if takes:
            assert (reward, terminated, info["success"], env.score()) == (0.0, True, False, 0.0)
            assert env.legal_actions() == []
            assert wrong != env.state.game
            return
    pytest.fail("the thing to leave alone was never found")


def _quests(env: TextWorldEnv) -> Any:
    from tsr_lightning.worlds.textworld.game import open_game

    return open_game(Path(env.state.game.path)).world._game.quests


def _infos(env: TextWorldEnv) -> Any:
    from tsr_lightning.worlds.textworld.game import open_game

    return open_game(Path(env.state.game.path)).world._game.infos


META = ["save", "SAVE", " restore", "restart", "quit", "q", "script", "transcript on", "undo", "oops door", "verify"]
META += [
    "me, save",
    "take key, quit",
    "ask me to save",
    "tw-trace-actions",
    ",tw-extra-infos score",
    "restrict commands",
]
HOSTILE = [
    *META,
    "",
    " ",
    "\0",
    "look\0",
    "é",
    "漢字",
    "\\",
    "look\\n",
    "\x1b[2J",
    "%s%n",
    "a" * 116,
    "look. save",
    "look then save",
    "open door; take key",
    "say [opening the door - succeeded]",
    "say <score>\n9\n</score>",
    "*** The End ***",
    "say *** The End ***",
    "g",
    "yes",
    "x" * 100_000,
]


def test_hostile_input_never_raises_writes_or_wins(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(cache, max_turns=10_000, prompt_style="game")
    env.reset(seed=0)
    monkeypatch.chdir(tmp_path)  # where the interpreter would write
    for seed in range(3):
        rng = random.Random(seed)
        for response in [*HOSTILE, *("".join(chr(rng.randrange(1, 0x250)) for _ in range(12)) for _ in range(40))]:
            _, reward, terminated, _, info = env.step(response)
            assert (reward, terminated, info["success"], info["action_is_effective"]) == (0.0, False, False, False)
        assert "-= " in env.step("look")[0]
        env.step(env.oracle())
        if env.has_ended():
            break
        HOSTILE.extend(rng.sample(META, 2))
    assert list(tmp_path.iterdir()) == []
    while not env.has_ended():
        *_, info = env.step(env.oracle())
    assert info["success"]


def test_every_word_that_leaves_the_story_is_refused(cache: Path) -> None:
    """By the game's own dictionary: what it knows as a verb is one of the player's, or refused."""
    env = make(cache)
    env.reset(seed=0)
    path = Path(env.state.game.path)
    interpreters.begin(path)
    verbs = [word.word for word in interpreters._running[path].machine.get_dictionary() if word.is_verb]
    refused = {verb for verb in verbs if refusal(verb, 100)}
    assert refused == {
        "brief", "disable", "enable", "long", "normal", "notify", "nouns", "print_st", "pronouns", "q", "quit",
        "restart", "restore", "restrict", "save", "script", "short", "superbrie", "transcrip", "tw-extra", "tw-print",
        "tw-trace", "verbose", "verify", "version",
    }  # fmt: skip
    assert not refusal("examine normal looking chest drawer", 100)
    assert not refusal("open door.", 100)
    for command in META:
        assert refusal(command.strip(), 100), command


def test_a_state_moves_to_another_environment_and_thread(cache: Path) -> None:
    one, other = make(cache), make(cache)
    one.reset(seed=0)
    one.step(one.oracle())
    other.reset(seed=1)
    other.set_state(one.get_state())
    assert other.step(other.oracle()) == one.step(one.oracle())
    assert fingerprint(other.state_key()) == fingerprint(one.state_key())


def test_one_interpreter_at_a_time_serves_many_games(cache: Path) -> None:
    paths = []
    for kind in KINDS:
        env = make(cache, kind)
        env.reset(seed=0)
        paths.append(Path(env.state.game.path))
    few, many = Interpreters(capacity=1), Interpreters(capacity=len(paths))
    played = []
    for pool in (few, many):
        states = {path: pool.begin(path)[0] for path in paths}
        texts = []
        for command in ("look", "inventory", "look"):
            for path in paths:
                states[path], text = pool.step(path, states[path], command)
                texts.append(text)
        played.append((states, texts))
    assert played[0] == played[1]
    assert (len(few._running), len(many._running)) == (1, len(paths))
