"""The environment `tsr/ALFWorld-v0`: prompts, phrasings, rewards, generated scenes, games of a folder, and panels."""

import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from tests.alfworld_games import DATA, REASON, content, index, problem, write_games
from tsr_lightning.envs.base import Branchable, HasOracle, fingerprint
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.alfworld.env import ALFWorldEnv
from tsr_lightning.worlds.alfworld.grammars import MOVE, PUT
from tsr_lightning.worlds.alfworld.layouts import HELD_BY, OPENABLE, ROOMS
from tsr_lightning.worlds.alfworld.sources import open_source
from tsr_lightning.worlds.alfworld.tasks import KINDS
from tsr_lightning.worlds.panels import make_panel


@pytest.fixture(autouse=True)
def folders_are_looked_up_anew() -> None:
    """pytest gives a folder's name to a later test again, with other files."""
    open_source.cache_clear()


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"prompt_style": "paper", "reward": "dense", "score": "oracle", "history": 2, "admissible": True},
    {"prompt_style": "game", "grammar": "put", "max_turns": 4},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gymnasiums_checker_passes(settings: dict[str, Any]):
    check_env(gymnasium.make("tsr/ALFWorld-v0", **settings).unwrapped)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_branchable(settings: dict[str, Any]):
    report = check_branchable("tsr/ALFWorld-v0", kwargs=settings, seeds=range(1), noisy=False)
    assert report.skipped == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_branchable_at_length(settings: dict[str, Any]):
    assert check_branchable("tsr/ALFWorld-v0", kwargs=settings, seeds=range(6), noisy=False).skipped == ()


@pytest.mark.skipif(not DATA.exists(), reason=REASON)
def test_it_is_branchable_with_published_games(tmp_path: Path):
    write_games(tmp_path, sorted(index())[::80])
    kwargs = {"games": str(tmp_path), "reward": "dense"}
    assert check_branchable("tsr/ALFWorld-v0", kwargs=kwargs, seeds=range(1), noisy=False).skipped == ()


def test_it_is_registered_and_implements_the_contracts():
    env = gymnasium.make("tsr/ALFWorld-v0").unwrapped
    assert isinstance(env, ALFWorldEnv)
    assert isinstance(env, Branchable)
    assert isinstance(env, HasOracle)
    assert gymnasium.spec("tsr/ALFWorld-v0").max_episode_steps is None


# Generated scenes


def test_the_oracle_wins_every_kind_of_task_within_the_guides_shorter_trials():
    env = ALFWorldEnv(max_turns=12)
    won = Counter[str]()
    for seed in range(120):
        _, info = env.reset(seed=seed)
        assert env.score() < 1
        done = False
        while not done:
            _, reward, terminated, truncated, info = env.step(env.oracle())
            done = terminated or truncated
        assert info["success"]
        assert reward == 1
        won[info["task"]] += 1
    assert set(won) == set(KINDS)
    assert min(won.values()) >= 10  # a sixth of 120 is 20


def test_what_is_asked_for_never_begins_where_it_has_to_go():
    env = ALFWorldEnv(prompt_style="game")
    for seed in range(100):
        env.reset(seed=seed)
        level = env.state.game.level
        things, targets, _, _ = level.goal.relevant(level.scene)
        assert not any(level.start.inside[target] & things for target in targets)


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_the_tasks_that_fit_it(task: str, room: str):
    cannot = {
        "pick_heat_then_place_in_recep": {"livingroom", "bedroom", "bathroom"},
        "pick_cool_then_place_in_recep": {"livingroom", "bedroom", "bathroom"},
        "pick_clean_then_place_in_recep": {"livingroom", "bedroom"},
        "look_at_obj_in_light": {"kitchen", "bathroom"},
    }
    kwargs: dict[str, Any] = {"tasks": [task], "rooms": [room], "receptacles": [4, 7], "things": [3, 6]}
    if room in cannot.get(task, ()):
        with pytest.raises(ConfigError, match=rf"ALFWorldEnv\.tasks is '{task}': none of the rooms {room} has it"):
            ALFWorldEnv(**kwargs)
        return
    env = ALFWorldEnv(**kwargs)
    for seed in range(10):
        _, info = env.reset(seed=seed)
        scene = env.state.game.level.scene
        assert info["task"] == task
        assert 4 <= len(scene.receptacles) <= 7
        assert len(scene.things) <= 6 + 1  # and a lamp


def test_the_layouts_agree_with_each_other():
    known = {receptacle for room in ROOMS.values() for receptacle in room.receptacles}
    for room in ROOMS.values():
        for thing in (*room.things, *room.lamps):
            assert set(HELD_BY[thing]) & set(room.receptacles), thing
    assert {holder for holders in HELD_BY.values() for holder in holders} <= known
    assert known >= OPENABLE
    assert set(HELD_BY) == {thing for room in ROOMS.values() for thing in (*room.things, *room.lamps)}


def test_seeds_name_different_scenes_and_arguments_of_the_prompt_do_not_change_them():
    env, other = ALFWorldEnv(), ALFWorldEnv(prompt_style="game", reward="dense", max_turns=12)
    keys = []
    for seed in range(50):
        env.reset(seed=seed)
        other.reset(seed=seed)
        assert env.state.game.level.digest == other.state.game.level.digest
        keys.append(fingerprint(env.state_key()))
    assert len(set(keys)) == 50


def test_the_scenes_of_seeds_stay_what_they_are():
    """Studies and policies refer to them; a change of the generator makes others."""
    env = ALFWorldEnv()
    found = []
    for seed in range(3):
        env.reset(seed=seed)
        found.append(env.state.game.level.digest)
    assert found == ["5bb4bdaa7536070a36086c1a", "c94b009843e7e8a89d53ae39", "053d767abd0c4ae6e4dbcaea"]


# Prompts, phrasings and rewards


def test_the_guides_prompt():
    env = ALFWorldEnv(tasks=["pick_clean_then_place_in_recep"])
    observation, _ = env.reset(seed=0)
    task = env.state.game.level.scene.task
    assert env.instructions.endswith(f"Here is how to win the game:\n{task}")
    assert observation.startswith(
        "current state: -= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room."
    )
    assert observation.endswith(f"\n\nYour task is to: {task}\n\nyour action: ")
    assert "Admissible" not in observation


def test_listed_commands_are_those_of_the_engine():
    env = ALFWorldEnv(admissible=True, prompt_style="game")
    observation, _ = env.reset(seed=0)
    listed = observation.rpartition("Admissible commands: ")[2].removesuffix(".").split(", ")
    assert listed == env.legal_actions()
    assert {"look", "inventory", "help"} <= set(listed)


def test_both_phrasings():
    seen = {}
    for grammar in (PUT, MOVE):
        env = ALFWorldEnv(grammar=grammar.name, prompt_style="game", tasks=["pick_and_place_simple"])
        env.reset(seed=1)
        commands, answers, done = [], [], False
        while not done:
            commands.append(env.oracle())
            answer, _, done, _, _ = env.step(commands[-1])
            answers.append(answer)
        seen[grammar.name] = commands[-1], answers[0].split(". ")[0], answers[-1]
        assert ("help" in env.commands(env.state.game)) == (grammar is MOVE)
    thing, receptacle = seen["move"][0].removeprefix("move ").split(" to ")
    assert seen["put"][0] == f"put {thing} in/on {receptacle}"
    assert seen["put"][2] == f"You put the {thing} in/on the {receptacle}."
    assert seen["move"][2] == f"You move the {thing} to the {receptacle}."
    assert seen["put"][1].startswith("You arrive at loc ")
    assert not seen["move"][1].startswith("You arrive at loc ")


def test_dense_rewards_sum_to_one_in_a_game_that_is_won():
    env = ALFWorldEnv(reward="dense", max_turns=60)
    for seed in range(40):
        env.reset(seed=seed)
        rewards, done, turn = [], False, 0
        while not done:
            _, reward, terminated, truncated, info = env.step(env.oracle(0.3, Key(seed).fold_in(turn)))
            rewards.append(reward)
            turn, done = turn + 1, terminated or truncated
        assert min(rewards) >= 0
        assert sum(rewards) == pytest.approx(1.0) if info["success"] else sum(rewards) < 1


def test_hostile_responses_change_nothing_and_never_raise():
    draw = random.Random(0)
    alphabet = "abc xyz 019 {}[]()<>|\\\"'\n\t\x00\u200d\ud800é||%#"
    env = ALFWorldEnv(prompt_style="game", max_turns=2000)
    env.reset(seed=0)
    key = env.state_key()
    hostile = ["", " ", "\n", "go to", "go  to cabinet 1", "GO TO CABINET 1", "{lend.name}", "__import__('os')"]
    hostile += [
        "take mug 1 from",
        "open -1",
        "go to cabinet 99999999999999999999",
        "x" * 8192,
        "||",
        "look||",
        "(" * 5000,
    ]
    hostile += ["".join(draw.choices(alphabet, k=draw.randrange(200))) for _ in range(1000)]
    for response in hostile:
        _, reward, terminated, _, info = env.step(response)
        if info["action_is_valid"]:
            assert response.strip().split("||")[0].strip().rpartition("\n")[2] == "look"
        assert (reward, terminated, info["success"]) == (0, False, False)
        assert env.state_key() == key


def test_states_survive_pickling():
    env = ALFWorldEnv(history=1)
    env.reset(seed=4)
    env.step(env.oracle())
    state = pickle.loads(pickle.dumps(env.get_state()))
    key = env.state_key()
    env.reset(seed=5)
    env.set_state(state)
    assert env.state_key() == key
    assert env.step(env.oracle())[4]["action_is_valid"]


# Games of a folder


def write_game(folder: Path, task: str, grammar: str = "move {o} to {r}") -> None:
    folder.mkdir(parents=True)
    game = {
        "pddl_domain": "",
        "grammar": f'"rhs": "Your task is to: {task}" template :: "{grammar}"; {{__import__("os").abort()}}',
        "pddl_problem": problem(task),
    }
    (folder / "game.tw-pddl").write_text(json.dumps(game))


def test_a_folder_of_games_is_played_and_its_grammar_never_run(tmp_path: Path):
    write_game(tmp_path / "a", "put a mug in sinkbasin.")
    write_game(tmp_path / "b" / "c", "put two mug in shelf.", grammar="put {o} in/on {r}")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "initial_state.pddl").write_text(problem("look at apple under the desklamp."))
    env = make_env("tsr/ALFWorld-v0", games=str(tmp_path), prompt_style="game")
    found = [env.reset(seed=seed) for seed in range(4)]
    assert [info["game"] for _, info in found] == ["a", "b/c", "d", "a"]
    assert found[0] == found[3]
    assert str(found[2][0]).endswith("Your task is to: look at apple under the desklamp.")
    arrivals = []
    for seed in range(3):
        env.reset(seed=seed)
        arrivals.append(env.step("go to shelf 1")[0].split(".")[0])
    assert arrivals == ["You arrive at shelf 1", "You arrive at loc 3", "You arrive at loc 3"]
    other = make_env("tsr/ALFWorld-v0", games=str(tmp_path), prompt_style="game", grammar="put")
    other.reset(seed=0)
    assert str(other.step("go to shelf 1")[0]).startswith("You arrive at loc 3")


def test_a_folder_that_is_missing_or_without_games_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"ALFWorldEnv\.games is '.*nowhere': there is no such folder; give"):
        ALFWorldEnv(games=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"ALFWorldEnv\.tasks is \['heat'\]: games of a folder are what they are"):
        ALFWorldEnv(games=tmp_path, tasks=["heat"])
    (tmp_path / "traj_data.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no game\.tw-pddl and no initial_state\.pddl is in it or below it; give"):
        ALFWorldEnv(games=tmp_path)


GOOD = problem("put a mug in cabinet.")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("game.tw-pddl", "no JSON", "Expecting value"),
        ("game.tw-pddl", "[]", "facts do not fit together"),
        ("game.tw-pddl", "{}", "'pddl_problem'"),
        ("game.tw-pddl", json.dumps({"pddl_problem": GOOD, "grammar": "no task"}), "its grammar has no task"),
        ("game.tw-pddl", "[" * 100_000, "recursion"),
        ("initial_state.pddl", GOOD.partition("(:goal")[0] + "(:goal " + "(and " * 5000 + ")" * 5000, "recursion"),
        ("initial_state.pddl", "(:init (a" + " a" * 50_000 + "(:goal (and))", "no fact says atlocation"),
        ("game.tw-pddl", json.dumps({"pddl_problem": 7, "grammar": ""}), "it has no PDDL problem|facts do not fit"),
        ("initial_state.pddl", "", r"it has no \(:init \.\.\.\)"),
        ("initial_state.pddl", "(:init (atLocation agent1 loc_bar_9))", r"it has no \(:goal \.\.\.\)"),
        ("initial_state.pddl", "(:init ) (:goal (and))", "no fact says atlocation"),
        ("initial_state.pddl", GOOD.partition("(:goal")[0] + "(:goal (and", "the brackets of its goal do not match"),
        ("initial_state.pddl", GOOD.partition("(:goal")[0] + "(:goal (forall (?x) (p ?x)))", "goal"),
        ("initial_state.pddl", GOOD.replace("inReceptacle ?o ?r", "near ?o ?r"), "none of ALFWorld's six kinds"),
        ("initial_state.pddl", GOOD.replace("(atLocation agent1 loc_bar_9)", "(atLocation agent1)"), "facts|values"),
        ("initial_state.pddl", GOOD.replace("(objectType Mug_bar_1 MugType)", ""), "facts do not fit"),
    ],
    ids=lambda value: value[:20],  # the whole of some texts would fill a page
)  # fmt: skip
def test_a_file_that_is_no_game_is_refused_in_one_sentence(tmp_path: Path, name: str, text: str, why: str):
    (tmp_path / name).write_text(text)
    env = ALFWorldEnv(games=tmp_path)
    with pytest.raises(ConfigError, match=rf"ALFWorldEnv\.games: .*{name} is no game of ALFWorld: .*({why})") as error:
        env.reset(seed=0)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("; leave it out.")


def test_a_game_that_cannot_be_won_or_is_won_from_the_start_is_refused(tmp_path: Path):
    (tmp_path / "hopeless").mkdir()
    text = problem("put a mug in sinkbasin.").replace("(canContain SinkBasinType MugType)", "")
    (tmp_path / "hopeless" / "initial_state.pddl").write_text(text)
    (tmp_path / "won").mkdir()
    (tmp_path / "won" / "initial_state.pddl").write_text(problem("put a mug in cabinet."))
    env = ALFWorldEnv(games=tmp_path)
    with pytest.raises(
        ConfigError, match=r"'hopeless': 'put a mug in sinkbasin\.' cannot be reached in this game; leave"
    ):
        env.reset(seed=0)
    with pytest.raises(ConfigError, match="'won': its goal holds from the start; leave the game out"):
        env.reset(seed=1)


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("grammar", "shove", "take one of put, move"),
        ("tasks", "pick_and_place_simple", "give a list of names"),
        ("tasks", ["juggle"], "take one of pick_and_place_simple"),
        ("tasks", [], "give at least one of"),
        ("rooms", ["cellar"], "take one of kitchen"),
        ("receptacles", [5], r"give the fewest and the most, such as \[6, 12\]"),
        ("receptacles", 5, "give the fewest and the most"),
        ("things", [4, 3], "give a whole number of at least 4"),
        ("max_turns", 0, "give a whole number of at least 1"),
        ("panel", "nowhere", "there is no such panel; take one of"),
        ("panel", 3, "give the name of a panel"),
        ("games", 3, "give the folder that games lie in"),
    ],
)
def test_bad_arguments_are_named(argument: str, value: object, remedy: str):
    with pytest.raises(ConfigError, match=rf"ALFWorldEnv\.{argument} is .*: .*{remedy}"):
        ALFWorldEnv(**{argument: value})  # type: ignore[arg-type]


# Panels


def test_a_panel_of_generated_scenes_plays_its_scenes_alone_and_refuses_others(tmp_path: Path):
    env = ALFWorldEnv()
    digests = {}
    for seed in (11, 5, 7):
        env.reset(seed=seed)
        digests[str(seed)] = env.state.game.level.digest
    make_panel("three", {seed: digest.encode() for seed, digest in digests.items()}).save(tmp_path / "three.json")
    panelled = ALFWorldEnv(panel=tmp_path / "three.json")
    assert [panelled.reset(seed=seed)[1]["game"] for seed in range(4)] == ["11", "5", "7", "11"]
    with pytest.raises(ConfigError, match=r"ALFWorldEnv\.panel is 'three': its games have the hash"):
        ALFWorldEnv(panel=tmp_path / "three.json", receptacles=(4, 6))


@pytest.mark.parametrize("name", ["alfworld-generated-100", "alfworld-generated-small-100"])
def test_the_panels_of_generated_scenes_that_come_with_the_package(name: str):
    kwargs: dict[str, Any] = {"receptacles": (5, 8), "things": (3, 8)} if "small" in name else {}
    env = ALFWorldEnv(panel=name, **kwargs)
    games = [env.reset(seed=seed)[1]["game"] for seed in range(100)]
    assert len(set(games)) == 100


@pytest.mark.skipif(not DATA.exists(), reason=REASON)
@pytest.mark.parametrize(("split", "games"), [("valid_seen", 70), ("valid_unseen", 67)])
def test_the_panels_of_published_games_are_theirs(tmp_path: Path, split: str, games: int):
    names = [name for name in index() if name.startswith(split)]
    write_games(tmp_path, names)
    env = ALFWorldEnv(games=tmp_path, panel=f"alfworld-{split}-{games}")
    assert {env.reset(seed=seed)[1]["game"] for seed in range(games)} == set(names)
    changed = content(names[0])
    changed["pddl_problem"] += " "
    (tmp_path / names[0] / "game.tw-pddl").write_text(json.dumps(changed))
    other_path = tmp_path / "."  # folders are read once in a process
    with pytest.raises(ConfigError, match="so they are not the panel's; get those"):
        ALFWorldEnv(games=f"{other_path}/", panel=f"alfworld-{split}-{games}")


@pytest.mark.parametrize("said", ["{}", "{}.", "**{}**", "Action: {}"])
def test_a_lenient_reader_takes_a_command_in_any_case(said: str):
    """The original's commands are in lower case, and sentences begin with a capital."""
    env = make_env("tsr/ALFWorld-v0", prompt_style="instruct")
    env.reset(seed=0)
    command = next(one for one in env.unwrapped.legal_actions() if one.startswith("go to"))
    assert env.step(said.format(command.capitalize()))[-1]["action_is_valid"]
    strict = make_env("tsr/ALFWorld-v0", prompt_style="game")
    strict.reset(seed=0)
    assert not strict.step(command.capitalize())[-1]["action_is_valid"]
    assert strict.step(command)[-1]["action_is_valid"]
