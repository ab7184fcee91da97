"""The environment: rewards, budgets, observations, states, the oracle, and the contracts of gymnasium and search."""

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from tsr_lightning.envs.base import Branchable, HasOracle, fingerprint
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.sokoban.env import SokobanEnv
from tsr_lightning.envs.text import CHARSET, ObservationName
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

LEVELS = """\
; 0
#######
#@ $ .#
#######
; 1
######
#@$ .#
#  $.#
#    #
######
; 2
######
#$  .#
# @  #
######
"""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"prompt_style": "brief"},
    {"observation": "grid", "prompt_style": "brief"},
    {"observation": "coordinates"},
    {"size": (7, 7), "boxes": 2, "max_solution": 20, "max_turns": 10, "max_actions": 20},
    {"actions_per_turn": 1, "max_turns": 3, "min_solution": 1, "max_solution": 3},
]


@pytest.fixture
def levels_file(tmp_path: Path) -> Path:
    path = tmp_path / "levels.txt"
    path.write_text(LEVELS)
    return path


def brief(**settings: Any) -> SokobanEnv:
    return SokobanEnv(**{"prompt_style": "brief", **settings})


def answer(*actions: str) -> str:
    return f"<answer>{' || '.join(actions)}</answer>"


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gymnasiums_checker_passes(settings: dict[str, Any]) -> None:
    check_env(gymnasium.make("tsr/Sokoban-v0", **settings).unwrapped)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_branchable(settings: dict[str, Any]) -> None:
    report = check_branchable("tsr/Sokoban-v0", kwargs=settings, noisy=False, seeds=range(2))
    assert report.skipped == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_branchable_at_length(settings: dict[str, Any]) -> None:
    assert check_branchable("tsr/Sokoban-v0", kwargs=settings, noisy=False).skipped == ()


def test_it_is_registered_and_implements_the_contracts() -> None:
    env = gymnasium.make("tsr/Sokoban-v0").unwrapped
    assert isinstance(env, SokobanEnv)
    assert isinstance(env, Branchable)
    assert isinstance(env, HasOracle)
    assert gymnasium.spec("tsr/Sokoban-v0").max_episode_steps is None


def test_the_papers_prompt() -> None:
    env = SokobanEnv()
    observation, info = env.reset(seed=0)
    assert env.instructions == (
        "You're a helpful assistant. You are solving the Sokoban puzzle. You are the player and you need to push all "
        "boxes to targets.\n"
        "You are provided with a symbol grid and the zero-indexed coordinates of the player, each box, and each "
        "target.\n"
        "Coordinates count rows from the top and columns from the left, from (0, 0).\n"
        "When you are exactly next to a box, you can push it by moving in the same direction.\n"
        "You cannot push a box through a wall, and you cannot pull a box.\n"
        "The answer should be a sequence of actions, like <answer>Right || Right || Up</answer>.\n"
        "The meaning of each symbol in the state is:\n"
        "#: wall, _: empty, O: target, √: box on target, X: box, P: player, S: player on target\n"
        "Your available actions are:\nUp, Down, Left, Right\n"
        'You can make up to 10 actions, separated by the action separator " || "'
    )
    assert observation.startswith(
        "Turn 1:\nState:\nCoordinates: \nBoard size: 6 rows x 6 cols (zero-indexed).\nTargets"
    )
    assert "\nGrid Map: \n######\n" in observation
    assert "\nYou have 10 actions left. Always output: <think>" in observation
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}
    assert set(env.instructions + observation) <= CHARSET


@pytest.mark.parametrize("observation", ["grid", "coordinates", "both"])
def test_the_rules_speak_of_coordinates_where_they_are_shown(observation: ObservationName) -> None:
    for style in ("instruct", "paper"):
        said = SokobanEnv(prompt_style=style, observation=observation).instructions
        assert ("from (0, 0)" in said) == (observation != "grid")


def test_observations_by_hand(levels_file: Path) -> None:
    env = brief(levels=levels_file)
    assert env.reset(seed=1)[0] == "P 1 1\nX 1 2\nX 2 3\nO 1 4\nO 2 4\n######\n#PX_O#\n#__XO#\n#____#\n######\n10 left"
    env.step(answer("Down", "Right"))
    assert (
        env.step(answer("Right"))[0]
        == "P 2 3\nX 1 2\n√ 2 4\nO 1 4\nO 2 4\n######\n#_X_O#\n#__P√#\n#____#\n######\n6 left"
    )
    grid = "######\n#_X_O#\n#__P√#\n#____#\n######"
    state = env.get_state()

    def shown(**settings: Any) -> str:
        other = SokobanEnv(levels=levels_file, **settings)
        other.set_state(state)
        return other.step("nonsense")[0]

    assert shown(observation="grid", prompt_style="brief").split("\n", 1)[1] == f"{grid}\n4 left"
    coordinates = "Board size: 5 rows x 6 cols (zero-indexed).\nTargets: (1, 4), (2, 4)\n"
    coordinates += "Boxes: (1, 2)\nBoxes on target: (2, 4)\nPlayer: (2, 3)"
    assert f"State:\nCoordinates: \n{coordinates}\nGrid Map: \n{grid}\nNo valid" in shown()
    assert f"State:\n{coordinates}\nNo valid" in shown(observation="coordinates")
    assert shown(observation="coordinates", prompt_style="brief").endswith("P 2 3\nX 1 2\n√ 2 4\nO 1 4\nO 2 4\n4 left")
    ansi = SokobanEnv(levels=levels_file, render_mode="ansi")
    ansi.set_state(state)
    assert ansi.render() == grid
    assert env.render() is None


def test_rewards_by_hand_and_a_turn_stops_when_solved(levels_file: Path) -> None:
    env = brief(levels=levels_file)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(answer("Right", "Up"))  # a walk and a wall
    assert (round(reward, 9), terminated, truncated) == (-0.2, False, False)
    assert info.pop("parsed_action") == "Right || Up"
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
    _, reward, _, _, info = env.step(answer("Up", "Down"))
    assert (round(reward, 9), info["action_is_effective"]) == (-0.2, False)
    _, reward, _, _, _ = env.step(answer("Right"))  # a push, onto no target
    assert round(reward, 9) == -0.1
    assert env.remaining() == 4  # five actions are played, and two turns of two are left
    observation, reward, terminated, truncated, info = env.step(answer("Right", "Left"))
    assert (round(reward, 9), terminated, truncated) == (10.9, True, False)  # 1 for the box, 10 for all, -0.1
    assert info.pop("parsed_action") == "Right || Left"
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True}
    assert "#___P√#" in observation  # Left was not played
    assert env.score() == 1
    assert env.legal_actions() == []
    with pytest.raises(ResetNeeded):
        env.step(answer("Left"))


def test_a_box_pushed_off_its_target_costs_its_reward(tmp_path: Path) -> None:
    path = tmp_path / "off.txt"
    path.write_text("########\n#@*  $.#\n########\n")
    env = brief(levels=path)
    env.reset(seed=0)
    assert round(env.step(answer("Right"))[1], 9) == -1.1


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ("Up", "no <answer>...</answer> in the response"),
        ("<answer></answer>", "the answer is empty"),
        ("<answer>Up || Jump</answer>", "'Jump' is no action"),
    ],
)
def test_an_unreadable_response_costs_a_turn_and_is_warned_about(response: str, problem: str) -> None:
    env = brief(format_penalty=-0.25)
    first, _ = env.reset(seed=4)
    observation, reward, terminated, truncated, info = env.step(response)
    assert (reward, terminated, truncated) == (-0.25, False, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False, "parsed_action": ""}
    assert observation == f"No valid action provided previously: {problem}.\n" + first.replace("10 left", "8 left")
    for turn in range(4):
        assert env.step(response)[3] == (turn == 3)
    assert env.remaining() == 0


def test_the_last_action_truncates(levels_file: Path) -> None:
    env = brief(levels=levels_file, max_turns=50, actions_per_turn=3, max_actions=4)
    env.reset(seed=2)
    assert env.remaining() == 4
    assert not env.step(answer("Up", "Down", "Up", "Down"))[3]  # the fourth is not played
    assert env.remaining() == 1
    _, reward, terminated, truncated, _ = env.step(answer("Right", "Right", "Right"))
    assert (round(reward, 9), terminated, truncated) == (-0.1, False, True)


def test_a_solution_with_the_last_action_terminates(levels_file: Path) -> None:
    env = brief(levels=levels_file, max_turns=2, max_actions=3)
    env.reset(seed=0)
    env.step(answer("Right", "Right"))
    assert env.step(answer("Right"))[2:4] == (True, False)


def test_a_state_is_exact_immutable_and_can_be_pickled() -> None:
    env, other = brief(), brief()
    env.reset(seed=11)
    env.step("nonsense")
    env.reseed(Key(5))
    state = pickle.loads(pickle.dumps(env.get_state()))
    assert state == env.get_state()
    assert hash(state) == hash(env.get_state())
    expected = [env.step(env.oracle()) for _ in range(2)]
    other.set_state(state)
    assert [other.step(other.oracle()) for _ in range(2)] == expected
    env.set_state(state)
    assert env.get_state() == state
    assert isinstance(hash(state), int)


def test_the_state_key_leaves_out_the_budget(levels_file: Path) -> None:
    env = brief(levels=levels_file)
    env.reset(seed=0)
    key = env.state_key()
    env.step(answer("Right", "Left"))
    assert env.state_key() == key
    assert fingerprint(env.state_key()) == fingerprint(key)
    env.step(answer("Right"))
    assert env.state_key() != key
    env.reset(seed=2)
    assert env.state_key() != key


def test_seeds_name_levels(levels_file: Path) -> None:
    env = brief(levels=levels_file)
    assert [env.reset(seed=seed)[0] for seed in range(3)] == [env.reset(seed=seed)[0] for seed in range(3, 6)]
    generated = brief()
    assert generated.reset(seed=1)[0] == brief().reset(seed=1)[0] != generated.reset(seed=2)[0]
    # without a seed: continues from the last one
    generated.reset(seed=1)
    following = [generated.reset()[0] for _ in range(5)]
    generated.reset(seed=1)
    assert [generated.reset()[0] for _ in range(5)] == following
    assert len(set(following)) == 5


@pytest.mark.parametrize("settings", [{}, {"boxes": 2}, {"prompt_style": "paper", "observation": "grid"}], ids=str)
def test_the_oracle_solves_every_generated_level_within_the_budget(settings: dict[str, Any]) -> None:
    env = brief(**settings)
    for seed in range(200):
        env.reset(seed=seed)
        scores, done = [env.score()], False
        while not done:
            _, _, terminated, truncated, info = env.step(env.oracle())
            scores.append(env.score())
            done = terminated or truncated
        assert info["success"]
        assert scores[0] < 1
        assert scores[-1] == 1
        assert 0 not in scores


def test_the_oracle_plans_around_the_noise_of_its_key() -> None:
    env = brief()
    solved = {}
    for noise in (0.0, 0.35, 1.0):
        wins = 0
        for seed in range(60):
            env.reset(seed=seed)
            done = False
            while not done:
                key = Key(seed).fold_in("noise", env.remaining())
                response = env.oracle(noise, key)
                assert response == env.oracle(noise, key)
                assert response != answer()
                _, _, terminated, truncated, info = env.step(response)
                assert info["action_is_valid"]
                assert info["action_is_effective"]
                done = terminated or truncated
            wins += info["success"]
        solved[noise] = wins
    assert solved[0.0] == 60
    assert 10 < solved[0.35] < 50
    assert solved[1.0] < solved[0.35]


def test_the_oracle_plays_on_in_a_lost_state(levels_file: Path) -> None:
    env = brief(levels=levels_file)
    env.reset(seed=2)
    assert env.score() == 0
    assert env.oracle() == answer("Up", "Down")  # the first that change the board, as nothing is drawn without a key
    responses = {env.oracle(key=Key(number)) for number in range(40)}
    assert len(responses) > 4
    with pytest.raises(ConfigError, match=r"noise is 0\.5: give a key"):
        env.oracle(0.5)


def test_the_paper_prompt_tells_the_actions_that_can_be_played() -> None:
    assert "up to 10 actions" in SokobanEnv().instructions
    assert "up to 4 actions" in SokobanEnv(max_turns=2).instructions  # two turns of two actions, of max_actions 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_turns": 0}, "SokobanEnv.max_turns is 0: give a whole number of at least 1."),
        ({"actions_per_turn": 1.5}, "actions_per_turn is 1.5"),
        ({"max_actions": -1}, "max_actions is -1"),
        ({"size": 6}, "size is 6: give rows and columns, such as [6, 6]."),
        ({"size": (6,)}, "size is (6,): give rows and columns"),
        ({"size": ("6", 6)}, "size is '6': give a whole number of at least 3."),
        ({"boxes": 0}, "boxes is 0"),
        ({"observation": "image"}, "observation is 'image': take one of grid, coordinates, both."),
        ({"prompt_style": "long"}, "prompt_style is 'long': take one of paper, instruct, brief, bare."),
        ({"render_mode": "human"}, "render_mode is 'human': take one of ansi."),
        ({"format_penalty": 0.1}, "format_penalty is 0.1: it is a reward, so give 0 or less"),
        ({"min_solution": 11, "max_solution": 20}, "no level could be solved within the 10 actions"),
        ({"min_solution": 9, "max_turns": 4}, "no level could be solved within the 8 actions"),
        ({"size": (3, 5)}, "min_solution is 2: none of"),
        ({"levels": "nowhere/at_all.txt"}, "nowhere/at_all.txt: there is no such level file"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        SokobanEnv(**settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_size_may_be_a_list() -> None:
    assert SokobanEnv(size=[5, 7]).reset(seed=0)[0].count("Board size: 5 rows x 7 cols") == 1  # type: ignore[arg-type]


def test_a_step_before_the_reset_is_refused() -> None:
    with pytest.raises(ResetNeeded):
        SokobanEnv().step("Up")


def test_a_player_walled_in_by_boxes_has_legal_actions(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("######\n# $$.#\n#$  .#\n#$@..#\n######\n")
    env = brief(levels=path)
    env.reset(seed=0)
    # into the corner: two boxes in a row to each side
    env.set_state(env.episode._replace(state=env.state._replace(player=7)))
    assert env.legal_actions() == [answer(name) for name in ("Up", "Down", "Left", "Right")]
    assert env.oracle() == answer("Up", "Up")
    assert env.score() == 0
    flags = {"success": False, "action_is_valid": True, "action_is_effective": False}
    assert env.step(env.oracle())[4] == {**flags, "parsed_action": "Up || Up"}
