"""`TextEnv` with a small task of a user's own, as in docs/extend.md."""

from typing import Any, get_type_hints

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle
from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.sample_texts import sample_texts
from tsr_lightning.envs.text import Answer
from tsr_lightning.envs.text_env import AnyText, TextEnv, TextEnvOptions
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

DIGITS = "123456789"


class Guess(TextEnv[tuple[int, int]]):
    """Find a number from 1 to 9 in four guesses; the state is the number and the last guess."""

    instructions = "Guess a number from 1 to 9."

    def __init__(self, max_turns: int = 4, **kwargs: Any) -> None:
        super().__init__(max_turns=max_turns, **kwargs)

    def initial_state(self, seed: int) -> tuple[int, int]:
        return 1 + Key(seed).bits() % 9, 0

    def read(self, response: str, limit: int) -> Answer:
        digits = [character for character in response if character in DIGITS]
        return Answer(tuple(digits[:limit]), "" if digits else "no digit from 1 to 9")

    def play(self, state: tuple[int, int], actions: tuple[str, ...], noise: Draws) -> TurnResult[tuple[int, int]]:
        (number, last), guess = state, int(actions[0])
        won = guess == number
        return TurnResult((number, guess), float(won), effective=guess != last, success=won)

    def show(self, state: tuple[int, int]) -> str:
        number, last = state
        return f"It is {'higher' if number > last else 'lower'} than {last}."

    def score(self) -> float:
        return 1 - abs(self.state[0] - self.state[1]) / 9


class Dice(TextEnv[int]):
    """A turn rolls up to two dice; three sixes win. Ones, which end the episode, are why one might roll only one."""

    instructions = "Say roll once or twice."

    def __init__(self) -> None:
        super().__init__(max_turns=3, actions_per_turn=2, max_actions=5)

    def initial_state(self, seed: int) -> int:
        return 0

    def read(self, response: str, limit: int) -> Answer:
        rolls = ("roll",) * min(response.count("roll"), limit)
        return Answer(rolls, "" if rolls else "no roll")

    def play(self, state: int, actions: tuple[str, ...], noise: Draws) -> TurnResult[int]:
        before, played = state, 0
        for _ in actions:
            played += 1
            roll = 1 + noise.below(6)
            state += roll == 6
            if roll == 1 or state == 3:
                return TurnResult(state, 0.5, played, state != before, success=state == 3, terminated=roll == 1)
        return TurnResult(state, 0.5, played, effective=state != before)

    def show(self, state: int) -> str:
        return f"{state} sixes"

    def score(self) -> float:
        return self.state / 3

    def legal_actions(self) -> list[str]:
        return [] if self.has_ended() else ["roll"]

    def noise_key(self, seed: int) -> Key:
        return Key(seed).fold_in("dice")


def started(seed: int = 0, **kwargs: Any) -> Guess:
    env = Guess(**kwargs)
    env.reset(seed=seed)
    return env


def test_a_task_without_legal_actions_is_branchable() -> None:
    report = check_branchable(Guess, responses=list(DIGITS), noisy=False)
    assert report.skipped == ()


def test_without_legal_actions_the_checker_needs_responses() -> None:
    with pytest.raises(
        BranchabilityError, match=r"responses: nothing to play without legal_actions; give check-env --response"
    ):
        check_branchable(Guess)


def test_a_noisy_task_is_branchable() -> None:
    assert check_branchable(Dice, noisy=True).skipped == ()


@pytest.mark.parametrize("task", [Guess, Dice])
def test_gymnasiums_checker_passes(task: type[TextEnv[Any]]) -> None:
    check_env(task(), skip_render_check=True)


def test_optional_parts_are_optional() -> None:
    assert isinstance(Guess(), Branchable)
    assert not isinstance(Guess(), HasLegalActions)
    assert isinstance(Dice(), HasLegalActions)
    assert not isinstance(Dice(), HasOracle)


def test_an_episode_by_hand() -> None:
    env = started()
    number = env.state[0]
    wrong = number % 9 + 1
    observation, reward, terminated, truncated, info = env.step(f"is it {wrong}?")
    assert observation == f"It is {'higher' if number > wrong else 'lower'} than {wrong}.\n3 left"
    assert (reward, terminated, truncated) == (0.0, False, False)
    expected = {"success": False, "action_is_valid": True, "action_is_effective": True, "parsed_action": str(wrong)}
    assert info == expected
    observation, reward, *_, info = env.step("hm")
    assert info["parsed_action"] == ""
    assert observation.startswith("No valid action provided previously: no digit from 1 to 9.\nIt is ")
    assert (reward, info["action_is_valid"], info["action_is_effective"]) == (-0.1, False, False)
    assert env.step(str(number))[1:4] == (1.0, True, False)
    assert env.score() == 1
    with pytest.raises(ResetNeeded, match="the episode has ended"):
        env.step("1")


def test_the_budget_is_the_smaller_of_turns_and_actions() -> None:
    env = Dice()
    env.reset(seed=0)
    state = env.episode
    assert env.remaining() == 5
    env.set_state(state._replace(turns=1, actions=1))
    assert env.remaining() == 4
    env.set_state(state._replace(turns=1, actions=4))
    assert env.remaining() == 1
    env.set_state(state._replace(turns=2, actions=4))
    assert not env.has_ended()
    _, reward, terminated, truncated, _ = env.step("roll roll")  # only one is played
    assert (env.episode.actions, env.episode.draws, reward) == (5, 1, 0.5)
    assert truncated is not terminated
    assert env.legal_actions() == []


def test_a_state_restores_in_another_environment_and_reseed_starts_new_draws() -> None:
    env, other = Dice(), Dice()
    env.reset(seed=3)
    env.reseed(Key(8))
    assert env.episode == env.episode._replace(key=Key(8), draws=0)
    other.set_state(env.get_state())
    assert other.step("roll") == env.step("roll")
    assert other.get_state() == env.get_state()


def test_a_reset_without_a_seed_continues_from_the_last_one() -> None:
    states: list[list[tuple[int, int]]] = []
    for env in (started(4), started(4)):
        states.append([])
        for _ in range(50):
            env.reset()
            states[-1].append(env.state)
    assert states[0] == states[1]
    assert len(set(states[0])) > 5


def test_rendering() -> None:
    assert started().render() is None
    assert started(render_mode="ansi").render() == started().show(started().state)
    with pytest.raises(ResetNeeded, match="there is no episode yet"):
        Guess(render_mode="ansi").render()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_turns": 0}, "Guess.max_turns is 0: give a whole number of at least 1."),
        ({"actions_per_turn": 1.5}, "Guess.actions_per_turn is 1.5: give a whole number"),
        ({"max_actions": True}, "Guess.max_actions is True: give a whole number"),
        ({"prompt_style": "loud"}, "Guess.prompt_style is 'loud': take one of paper, instruct, brief, bare."),
        ({"render_mode": "human"}, "Guess.render_mode is 'human': take one of ansi."),
        ({"format_penalty": 0.1}, "Guess.format_penalty is 0.1: it is a reward, so give 0 or less"),
        ({"format_penalty": float("nan")}, "Guess.format_penalty is nan"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Guess(**kwargs)
    assert str(refused.value).startswith(message)


def test_options_are_the_arguments_of_the_class() -> None:
    arguments = get_type_hints(TextEnv.__init__)
    del arguments["return"]
    assert get_type_hints(TextEnvOptions) == arguments


def test_observations_may_have_any_characters() -> None:
    assert "北京 ☕" in Guess().observation_space
    assert "x" * 5 not in AnyText(4)


def test_sample_texts_of_a_task_without_oracle_and_legal_actions_are_observations_and_warnings() -> None:
    texts = list(sample_texts(Guess()))
    assert texts[0] == Guess.instructions
    assert any(text.startswith("It is higher than 0.") for text in texts)
    assert any("no digit from 1 to 9" in text for text in texts)
    assert texts == list(sample_texts(Guess()))
    assert "roll" in list(sample_texts(Dice()))
