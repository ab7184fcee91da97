"""The lake as an environment: observations, budgets, instances, and bad arguments."""

from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.base import Branchable, HasOracle, fingerprint
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

DESC = ["SFH", "FFF", "HFG"]
PAPER_STATE = """\
Coordinates:
Player: (0, 0)
Goal: (2, 2)
Holes: (0, 2), (2, 0)
Grid Map:
P_O
___
O_G
"""


def no_slip(**kwargs: Any) -> TextFrozenLake:
    """A lake that does not slip, after a reset."""
    env = TextFrozenLake(
        **{"desc": DESC, "success_rate": 1.0, "prompt_style": "brief", "observation": "grid", **kwargs}
    )
    env.reset(seed=0)
    return env


class TestObservations:
    def test_the_paper_shows_coordinates_and_grid(self) -> None:
        observation, _ = TextFrozenLake(desc=DESC).reset(seed=0)
        assert observation.startswith("Turn 1:\nState:\n" + PAPER_STATE)
        assert "You have 10 actions left." in observation

    def test_the_grid_alone(self) -> None:
        observation, _ = TextFrozenLake(desc=DESC, observation="grid").reset(seed=0)
        assert observation.startswith("Turn 1:\nState:\nP_O\n___\nO_G\nYou have")

    def test_brief_is_compact(self) -> None:
        observation, _ = TextFrozenLake(desc=DESC, prompt_style="brief").reset(seed=0)
        assert observation == "P 0 0\nG 2 2\nO 0 2\nO 2 0\nP_O\n___\nO_G\n10 left"

    def test_brief_coordinates(self) -> None:
        observation, _ = TextFrozenLake(desc=DESC, prompt_style="brief", observation="coordinates").reset(seed=0)
        assert observation == "P 0 0\nG 2 2\nO 0 2\nO 2 0\n10 left"

    def test_a_lake_without_holes_says_none(self) -> None:
        observation, _ = TextFrozenLake(desc=["SG"], observation="coordinates").reset(seed=0)
        assert "Holes: none" in observation

    def test_the_rules_name_symbols_actions_and_limits(self) -> None:
        rules = TextFrozenLake().instructions
        for part in ("√: player on goal", "Left, Down, Right, Up", "up to 10 actions", "the first 2", "slippery"):
            assert part in rules
        assert "slippery" not in TextFrozenLake(success_rate=1.0).instructions

    def test_only_the_paper_style_shows_the_reward(self) -> None:
        assert no_slip(prompt_style="paper").step("?")[0].startswith("Reward:\n-0.1\nTurn 2:")
        assert "Reward" not in no_slip().step("?")[0]

    def test_the_player_in_a_hole_and_on_the_goal(self) -> None:
        env = no_slip(render_mode="ansi")
        env.step("<answer>Right || Right</answer>")
        assert env.render() == "__X\n___\nO_G"
        env = no_slip(render_mode="ansi")
        env.step("<answer>Right || Down</answer>")
        env.step("<answer>Down || Right</answer>")
        assert env.render() == "__O\n___\nO_√"

    def test_observations_and_responses_are_in_their_spaces(self) -> None:
        env = TextFrozenLake(size=8, frozen=0.6)
        for seed in range(20):
            observation, _ = env.reset(seed=seed)
            assert observation in env.observation_space
            assert env.step("<answer>" + "~" * 500)[0] in env.observation_space
            assert env.oracle() in env.action_space


class TestTurns:
    def test_a_turn_plays_the_first_two_actions(self) -> None:
        env = no_slip()
        _, reward, terminated, truncated, info = env.step("<answer>down || RIGHT || Down</answer>")
        assert (env.state.cell, env.remaining()) == (4, 8)
        assert (reward, terminated, truncated) == (0.0, False, False)
        flags = {"success": False, "action_is_valid": True, "action_is_effective": True}
        assert info == {**flags, "parsed_action": "Down || Right"}

    def test_a_turn_stops_at_a_hole(self) -> None:
        env = no_slip(actions_per_turn=3)
        _, reward, terminated, truncated, info = env.step("<answer>Right || Right || Left</answer>")
        assert (env.get_state().actions, env.state.cell) == (2, 2)
        assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)

    def test_a_turn_stops_at_the_goal(self) -> None:
        env = no_slip(actions_per_turn=5)
        _, reward, terminated, truncated, info = env.step("<answer>Right||Down||Down||Right||Up</answer>")
        assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
        assert env.get_state().actions == 4

    def test_an_unreadable_response_costs_a_penalty_and_a_turn(self) -> None:
        env = no_slip()
        observation, reward, _, _, info = env.step("<answer>Jump</answer>")
        assert observation.startswith("No valid action provided previously: 'Jump' is no action.\n")
        assert (reward, env.state.cell, env.remaining()) == (-0.1, 0, 8)
        flags = {"success": False, "action_is_valid": False, "action_is_effective": False}
        assert info == {**flags, "parsed_action": ""}
        assert "No valid action" not in env.step("<answer>Down</answer>")[0]

    def test_walking_into_the_edge_is_valid_and_not_effective(self) -> None:
        *_, info = no_slip().step("<answer>Up || Left</answer>")
        assert (info["action_is_valid"], info["action_is_effective"]) == (True, False)

    def test_the_last_turn_truncates(self) -> None:
        env = no_slip(max_turns=2)
        assert env.remaining() == 4
        assert env.step("<answer>Up</answer>")[2:4] == (False, False)
        assert env.step("?")[2:4] == (False, True)
        assert (env.remaining(), env.legal_actions()) == (0, [])

    def test_the_last_action_truncates(self) -> None:
        env = no_slip(max_actions=3)
        env.step("<answer>Up || Up</answer>")
        assert env.remaining() == 1
        _, _, terminated, truncated, _ = env.step("<answer>Up || Down</answer>")
        assert (terminated, truncated, env.state.cell) == (False, True, 0)  # the fourth is not played

    def test_a_goal_with_the_last_action_terminates(self) -> None:
        env = no_slip(desc=["SG"], max_turns=1)
        assert env.step("<answer>Right</answer>")[1:4] == (1.0, True, False)

    def test_a_step_after_the_end_is_refused(self) -> None:
        env = no_slip(max_turns=1)
        env.step("?")
        with pytest.raises(ResetNeeded, match="has ended"):
            env.step("?")

    def test_a_step_before_the_reset_is_refused(self) -> None:
        with pytest.raises(ResetNeeded, match="no episode yet"):
            TextFrozenLake().step("?")


class TestInstances:
    def test_a_seed_names_a_lake_and_its_noise(self) -> None:
        one, other = TextFrozenLake(), TextFrozenLake()
        assert one.reset(seed=5) == other.reset(seed=5)
        assert one.get_state() == other.get_state()
        assert one.reset()[0] == other.reset()[0]  # and what comes after it
        assert len({fingerprint(_key(one, seed)) for seed in range(50)}) > 45

    def test_the_state_key_leaves_out_budget_and_start(self) -> None:
        env = no_slip()
        env.step("<answer>Down || Up</answer>")
        assert env.state_key() == no_slip().state_key()
        env.step("<answer>Down</answer>")
        assert env.state_key() == no_slip(desc=["FFH", "SFF", "HFG"]).state_key()

    def test_it_implements_the_contracts(self) -> None:
        assert isinstance(TextFrozenLake(), Branchable)
        assert isinstance(TextFrozenLake(), HasOracle)

    ARGUMENTS: tuple[dict[str, Any], ...] = (
        {"prompt_style": "brief"},
        {"observation": "grid", "actions_per_turn": 1, "max_turns": 10},
        {"max_actions": 3, "max_turns": 5},
        {"desc": DESC, "success_rate": 1 / 3},
        {"size": 8, "max_turns": 20, "max_actions": 30, "frozen": 0.8},
    )

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("kwargs", ARGUMENTS, ids=str)
    def test_it_is_branchable_at_length(self, kwargs: dict[str, Any]) -> None:
        assert check_branchable("tsr/FrozenLake-v0", kwargs=kwargs, noisy=True).skipped == ()

    @pytest.mark.parametrize("kwargs", ARGUMENTS, ids=str)
    def test_it_is_branchable_with_any_arguments(self, kwargs: dict[str, Any]) -> None:
        report = check_branchable("tsr/FrozenLake-v0", kwargs=kwargs, noisy=True, seeds=range(3))
        assert report.noisy
        assert report.skipped == ()

    def test_without_slip_there_is_no_noise(self) -> None:
        assert not check_branchable("tsr/FrozenLake-v0", kwargs={"success_rate": 1.0}, noisy=False).noisy

    def test_an_episode_through_gymnasiums_wrappers(self) -> None:
        env = gymnasium.make("tsr/FrozenLake-v0")  # its passive checker warns, and a warning is an error here
        env.reset(seed=1)
        done = False
        while not done:
            lake = env.unwrapped
            assert isinstance(lake, TextFrozenLake)
            _, _, terminated, truncated, _ = env.step(lake.oracle(0.5, Key(lake.remaining())))
            done = terminated or truncated


def _key(env: TextFrozenLake, seed: int) -> Any:
    env.reset(seed=seed)
    return env.state_key()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 1}, "TextFrozenLake.size is 1: give a whole number of at least 2"),
        ({"size": "4"}, "size is '4'"),
        ({"frozen": 1.5}, r"frozen is 1\.5: give a number from 0 to 1"),
        ({"success_rate": -0.1}, r"success_rate is -0\.1"),
        ({"max_turns": 0}, "TextFrozenLake.max_turns is 0"),
        ({"actions_per_turn": 2.0}, r"actions_per_turn is 2\.0"),
        ({"max_actions": True}, "max_actions is True"),
        ({"observation": "map"}, "observation is 'map': take one of grid, coordinates, both"),
        ({"prompt_style": "long"}, "prompt_style is 'long': take one of paper, instruct, brief"),
        ({"format_penalty": 0.1}, r"format_penalty is 0\.1: .* give 0 or less"),
        ({"render_mode": "human"}, "render_mode is 'human'"),
    ],
    ids=str,
)
def test_a_bad_argument_is_one_sentence(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextFrozenLake(**kwargs)
