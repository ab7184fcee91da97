"""`Replayed` makes an ordinary text environment branchable."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete, Text
from gymnasium.wrappers import TimeLimit

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.replay import Replayed, ReplayError
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances

ANSWERS = ["red", "blue", "pass"]


class Urn(gymnasium.Env[str, str]):
    """Guess the colour of the ball that is drawn next; three right guesses win. No snapshot, no reseed."""

    def __init__(self) -> None:
        self.action_space = Text(16)
        self.observation_space = Text(64, charset=frozenset("abcdefghijklmnopqrstuvwxyz0123456789 :,"))
        self.red = self.right = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.red, self.right = int(self.np_random.integers(1, 10)), 0
        return f"{self.red} of 10 are red", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        ball = "red" if self.np_random.integers(10) < self.red else "blue"
        self.right += ball == action
        return f"it was {ball}, right: {self.right}", float(ball == action), self.right == 3, False, {}


class ForgetfulUrn(Urn):
    """A counter survives the reset."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        begun = super().reset(seed=seed)
        self.episodes += 1
        return begun

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return f"{observation}, game {self.episodes}", *rest  # type: ignore[return-value]


def make_urn() -> Replayed:
    return Replayed(Urn(), actions=ANSWERS, max_turns=8, instructions="Guess.")


def test_an_ordinary_environment_becomes_branchable() -> None:
    report = check_branchable(make_urn, noisy=True)
    assert report.noisy
    assert report.skipped == ()


def test_a_wrapped_environment_keeps_its_limit() -> None:
    def limited() -> Replayed:
        return Replayed(TimeLimit(Urn(), 4), actions=ANSWERS, max_turns=6)

    check_branchable(limited, noisy=True)
    env = limited()
    env.reset(seed=0)
    state = env.get_state()
    for _ in range(2):
        env.set_state(state)
        assert [env.step("pass")[3] for _ in range(4)] == [False, False, False, True]


def test_it_implements_the_contract() -> None:
    env = make_urn()
    assert isinstance(env, Branchable)
    assert env.unwrapped is env
    assert env.instructions == "Guess."


def test_the_budget_is_counted_in_turns() -> None:
    env = make_urn()
    env.reset(seed=0)
    assert env.remaining() == 8
    flags = [env.step("pass")[2:4] for _ in range(8)]
    assert flags == [(False, False)] * 7 + [(False, True)]
    assert (env.remaining(), env.legal_actions()) == (0, [])
    with pytest.raises(ResetNeeded):
        env.step("pass")


def test_missing_info_is_filled_in() -> None:
    env = make_urn()
    env.reset(seed=0)
    assert env.step("pass")[4] == {"success": False, "action_is_valid": True, "action_is_effective": True}


def test_the_score_is_the_squashed_return_and_1_after_a_success() -> None:
    env = make_urn()
    env.reset(seed=0)
    assert env.score() == 0.5
    scores, done, info = [], False, {}
    while not done:
        _, _, terminated, truncated, info = env.step("red")
        scores.append(env.score())
        done = terminated or truncated
    assert info["success"]
    assert sorted(set(scores)) == [*([0.5] if 0.5 in scores else []), 0.75, pytest.approx(5 / 6), 1.0]


def test_given_functions_are_used() -> None:
    env = Replayed(
        Urn(),
        actions=lambda observation, info: ANSWERS[:2] if "right" in observation else ["pass"],
        max_turns=8,
        score=lambda observation, value: value / 3,
        state_key=len,
    )
    first, _ = env.reset(seed=1)
    assert (env.legal_actions(), env.score(), env.state_key()) == (["pass"], 0.0, len(first))
    env.step("pass")
    assert env.legal_actions() == ["red", "blue"]


class Number(gymnasium.Env[str, str]):
    """Guess a number from 1 to 9, which no observation shows."""

    def __init__(self) -> None:
        self.action_space = self.observation_space = Text(16)
        self.number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1, 10))
        return "Guess", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        found = action == str(self.number)
        return "found" if found else f"not {action.strip()}", float(found), found, False, {}


def test_hidden_state_is_played_and_held_out() -> None:
    digits = [str(digit) for digit in range(1, 10)]

    def hiding(**kwargs: Any) -> Replayed:
        return Replayed(Number(), actions=digits, max_turns=4, **kwargs)

    def shown() -> Replayed:
        return hiding(hidden=lambda env: env.number)

    check_branchable(shown)
    drawn = Instances([shown()], Key(1), HeldOut(4))
    assert len(drawn.held_out) == 4
    assert len(drawn.training(0, 20).instances) == 20
    env = shown()
    env.reset(seed=5)
    assert env.state_key() == ("Guess", env.unwrapped._env.unwrapped.number)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"only 1 different initial states were found.*in Replayed with `hidden`"):
        _ = Instances([hiding()], Key(1), HeldOut(4)).held_out


def test_the_example_of_the_page_can_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(import gymnasium\n\nfrom tsr_lightning import Replayed.*?)```", page, re.S)
    (tmp_path / "number.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    check_branchable("number:Number-v0", noisy=False)
    env: Any = make_env("number:Number-v0")
    assert env.reset(seed=1)[0] == "Which number?"
    observation, number = env.state_key()
    assert (observation, env.step(str(number))[1:3]) == ("Which number?", (1.0, True))


def test_an_effect_is_a_change_of_the_key() -> None:
    """And not of what else an observation shows."""
    env = Replayed(Urn(), actions=ANSWERS, max_turns=8, state_key=lambda observation: observation.count(":"))
    env.reset(seed=0)
    assert [env.step("pass")[4]["action_is_effective"] for _ in range(2)] == [True, False]


def test_reseed_draws_from_its_key() -> None:
    env = make_urn()
    env.reset(seed=3)
    state = env.get_state()

    def future(key: Key) -> list[str]:
        env.set_state(state)
        env.reseed(key)
        return [env.step("pass")[0] for _ in range(8)]

    assert future(Key(1)) == future(Key(1))
    assert len({tuple(future(Key(k))) for k in range(20)}) > 10


def test_a_replay_that_differs_names_the_turn() -> None:
    env = Replayed(ForgetfulUrn(), actions=ANSWERS, max_turns=8)
    env.reset(seed=0)
    env.step("pass")
    state = env.get_state()
    with pytest.raises(
        ReplayError, match=r"turn 1 of a replay shows 'it was .* game 2', and 'it was .* game 1' was recorded"
    ):
        env.set_state(state)


def test_the_checker_rejects_a_reset_that_forgets_nothing() -> None:
    with pytest.raises(
        BranchabilityError, match="reset: something of the last episode survives it, so a seed gave two episodes"
    ):
        check_branchable(lambda: Replayed(ForgetfulUrn(), actions=ANSWERS, max_turns=8))


def test_options_are_replayed() -> None:
    env = make_urn()
    env.reset(seed=0, options={"a": 1})
    assert env.get_state().options == '{"a": 1}'


def test_a_reset_without_a_seed_continues_from_the_last_one() -> None:
    one, other = make_urn(), make_urn()
    one.reset(seed=4)
    other.reset(seed=4)
    assert [one.reset()[0] for _ in range(5)] == [other.reset()[0] for _ in range(5)]


def test_a_missing_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Replayed\.max_turns is None"):
        Replayed(Urn(), actions=ANSWERS)


def test_an_environment_without_text_is_refused() -> None:
    urn = Urn()
    urn.action_space = Discrete(2)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"action space is Discrete\(2\); only environments with Text spaces"):
        Replayed(urn, actions=ANSWERS, max_turns=8)
