"""`check_branchable` on what environments return: own types are taken, and what a run would trip over is refused."""

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Message

Step = tuple[Any, Any, Any, Any, Any]
QUICK: dict[str, Any] = {"seeds": range(3), "turns": 5, "keys": 4}


class Lake(TextFrozenLake):
    """The correct environment behind the mutants."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"desc": ["SFFF", "FHFF", "FFFF", "FFFG"], "prompt_style": "brief", **kwargs})


# ---- correct environments of other types


class Messages(Lake):
    """Observations are messages."""

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return [Message("user", observation)], info

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        return [Message("tool", observation), Message("user", "Go on.")], *rest


class Scalars(Lake):
    """NumPy's scalars wherever there is a number or a flag."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        flags = {name: np.bool_(value) for name, value in info.items() if isinstance(value, bool)}
        return observation, np.float32(reward), np.bool_(terminated), np.bool_(truncated), {**info, **flags}

    def score(self) -> Any:
        return np.float64(super().score())

    def remaining(self) -> Any:
        return np.int64(super().remaining())


class OwnInstructions(Lake):
    """The instance's own instructions, which there are none of before a reset."""

    @property
    def instructions(self) -> str:
        if self._episode is None:
            raise ResetNeeded("there is no episode yet")
        return f"Find the goal of {len(self.state.rows)} rows."

    @instructions.setter
    def instructions(self, value: str) -> None:
        pass


@pytest.mark.parametrize("env", [Messages, Scalars, OwnInstructions])
def test_other_types_pass(env: type[Lake]) -> None:
    assert check_branchable(env, noisy=True).skipped == ()


def test_instructions_that_need_an_episode_can_be_made() -> None:
    gymnasium.register("OwnInstructions-v0", OwnInstructions)
    try:
        env = make_env("OwnInstructions-v0")
        env.reset(seed=0)
        assert env.instructions == "Find the goal of 4 rows."
    finally:
        del registry["OwnInstructions-v0"]


# ---- mutants that were accepted


class FailureScores1(Lake):
    def score(self) -> float:
        return 1.0 if self.has_ended() else super().score()


class AlwaysEffective(Lake):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_effective": True}


class ValidIsEffective(Lake):
    """A step into a wall is effective too."""

    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_effective": info["action_is_valid"]}


class PercentageInObservation(Lake):
    form = "You are {:.1%} there"

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        return f"{observation}\n{self.form.format(self.score())}", *rest


class WholePercentageInObservation(PercentageInObservation):
    form = "{:.0%} done"


class HundredfoldInObservation(PercentageInObservation):
    def step(self, action: str) -> Any:
        observation, *rest = Lake.step(self, action)
        return f"{observation}\nscore {100 * self.score():.3f}", *rest


class ReseedKeepsOneBit(Lake):
    def reseed(self, key: Key, /) -> None:
        super().reseed(Key(key.value & 1))


class OracleSpendsATurn(Lake):
    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        answer = super().oracle(noise, key)
        self._episode = self.episode._replace(turns=self.episode.turns + 1)
        return answer


class OracleSpendsNoise(Lake):
    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        answer = super().oracle(noise, key)
        self._episode = self.episode._replace(draws=self.episode.draws + 1)
        return answer


class OracleTakesNothing(Lake):
    def oracle(self) -> str:
        return super().oracle()


class OracleDrawsElsewhere(Lake):
    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        return random.choice(self.legal_actions()) if noise else super().oracle()


class PlaysOtherwise(Lake):
    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        return [random.choice([None, *range(1, horizon + 1)]) for _ in keys]


class PlaysOnItsOwnState(Lake):
    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        self._episode = self.episode._replace(turns=self.episode.turns + 1)
        return [None for _ in keys]


class PlaysBeyondTheHorizon(Lake):
    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        return [horizon + 1 for _ in keys]


class PlaysToASuccessAtOnce(Lake):
    def __init__(self) -> None:
        super().__init__(success_rate=1.0)

    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        return [1 for _ in keys]


class OneAction(Lake):
    """All that can be read counts as one action."""

    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "parsed_action": "go" if info["action_is_valid"] else ""}


class UnreadableIsUp(Lake):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "parsed_action": info["parsed_action"] or "Up"}


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (OneAction, r"parsed_action: it is 'go' after .*Left.* and after .*Down.*, and action_is_effective is False"),
        (UnreadableIsUp, "parsed_action: it is 'Up' after "),
        (FailureScores1, "score: it is 1 in an episode that ended without success"),
        (AlwaysEffective, "contract: info calls .* effective and not valid"),
        (ValidIsEffective, r"contract: info calls .* effective, and state_key\(\) is .* before and after it"),
        (PercentageInObservation, r"score: 0\.\d+ is in the observation"),
        (WholePercentageInObservation, r"score: 0\.\d+ is in the observation"),
        (HundredfoldInObservation, r"score: 0\.\d+ is in the observation"),
        (ReseedKeepsOneBit, "reseed: it keeps too little of its key"),
        (OracleSpendsATurn, r"oracle: calling it changes the state: .*remaining \d+ instead of \d+"),
        (OracleSpendsNoise, "oracle: calling it changes the steps after it"),
        (OracleTakesNothing, r"oracle: a run calls oracle\(noise, key\), which it does not take \(too many positional"),
        (OracleDrawsElsewhere, "oracle: one key gave .* and .* in one state: draw its noise from the key"),
        (PlaysOtherwise, r"play_randomly: equal keys gave \[.*\] and \[.*\]: draw all chance from the keys"),
        (PlaysOnItsOwnState, r"play_randomly: calling it changes the state: .*remaining \d+ instead of \d+"),
        (PlaysBeyondTheHorizon, r"play_randomly: it returns \[9, .*: give 4 results, each None or a number .* 1 to 8"),
    ],
)
def test_a_mutant_is_rejected_with_its_diagnosis(mutant: type[Lake], message: str) -> None:
    with pytest.raises(BranchabilityError, match=message):
        check_branchable(mutant, noisy=True)


def test_random_play_that_succeeds_where_no_action_does_is_rejected() -> None:
    with pytest.raises(BranchabilityError, match="play_randomly: it says that one action led to a success, and no"):
        check_branchable(PlaysToASuccessAtOnce)


def test_a_wrapper_that_search_would_leave_out_is_rejected() -> None:
    """Without a spec, and where a registered function puts it around."""

    def limited() -> gymnasium.Env[str, str]:
        return gymnasium.wrappers.TimeLimit(Lake(), 3)

    with pytest.raises(BranchabilityError, match="contract: Lake is wrapped in TimeLimit, whose state"):
        check_branchable(limited)
    gymnasium.register("Limited-v0", limited)
    try:
        with pytest.raises(ConfigError, match=r"data.env is 'Limited-v0': it is wrapped in TimeLimit, whose state"):
            make_env("Limited-v0")
    finally:
        del registry["Limited-v0"]


# ---- what is none of the contract's is named, and no TypeError of the checker's own


def returns(**parts: Any) -> Callable[[], Lake]:
    """Makes a lake that returns something else in one place."""

    class Other(Lake):
        def reset(self, **kwargs: Any) -> Any:
            return parts.get("reset", super().reset(**kwargs))

        def step(self, action: str) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            step = (parts.get("observation", observation), parts.get("reward", reward), terminated, truncated)
            return parts.get("step", (*step, parts.get("info", info)))

        def legal_actions(self) -> Any:
            return parts.get("legal", super().legal_actions())

        def oracle(self, noise: float = 0.0, key: Key | None = None) -> Any:
            return parts.get("oracle", super().oracle(noise, key))

        def state_key(self) -> Any:
            return parts.get("key", super().state_key())

    return Other


class Mistaken(Lake):
    def step(self, action: str) -> Any:
        return super().step(action + None)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (returns(reset="the lake"), r"contract: reset returns 'the lake'; return the tuple \(observation, info\)"),
        (returns(step=("", 0.0, False, {})), r"contract: step returns \('', 0\.0, False, {}\); return the tuple"),
        (returns(observation=None), "contract: an observation is a text or a sequence of .*, and this is None"),
        (returns(observation=[Message("user", ["a"])]), "contract: the content of the user message is"),  # type: ignore[arg-type]
        (returns(reward=None), "contract: the reward is None; give a finite number"),
        (returns(reward=float("inf")), "contract: the reward is inf; give a finite number"),
        (
            returns(info={"success": False, "parsed_action": 3}),
            r"contract: info\['parsed_action'\] is 3; give one string",
        ),
        (returns(info=None), "contract: info is None; give a dictionary"),
        (returns(info={"success": "yes"}), r"contract: info\['success'\] is 'yes'; give True or False"),
        (returns(legal=None), r"contract: legal_actions\(\) is None; give a list of texts"),
        (returns(oracle=None), "oracle: it returns None; return the text of a response"),
        (returns(key=[1]), r"state_key: \[1\] is not made of numbers, strings and tuples alone"),
        (Mistaken, r"contract: a call raised TypeError: .*test_checker_reports\.py:\d+ \(Mistaken\)"),
    ],
)
def test_what_is_none_of_the_contracts_is_named(env: Any, message: str) -> None:
    with pytest.raises(BranchabilityError, match=message):
        check_branchable(env, **QUICK)


# ---- another process


def elsewhere() -> bool:
    """True in the process that plays again: it has another salt than the one that the tests set."""
    return os.environ.get("PYTHONHASHSEED") == "2"


class SaltedReward(Lake):
    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.01 * elsewhere(), *rest


class SaltedEnd(Lake):
    def step(self, action: str) -> Any:
        observation, reward, terminated, *rest = super().step(action)
        return observation, reward, terminated or elsewhere(), *rest


class SaltedActions(Lake):
    def legal_actions(self) -> list[str]:
        return super().legal_actions()[:: -1 if elsewhere() else 1]


class SaltedInfo(Lake):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "room": hash("the room")}


class SaltedInstructions(Lake):
    def reset(self, **kwargs: Any) -> Any:
        begun = super().reset(**kwargs)
        self.instructions = f"Seek number {hash('the goal')}."
        return begun


class SaltedOracle(Lake):
    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        return super().legal_actions()[0 if elsewhere() else 1]


class NumberedByVisit(Lake):
    """An instance's name is its place among the seeds that were played."""

    visited: tuple[int, ...] = ()

    def reset(self, **kwargs: Any) -> Any:
        seed = kwargs["seed"]
        if seed not in self.visited:
            NumberedByVisit.visited = (*self.visited, seed)
        observation, info = super().reset(**kwargs)
        return f"{observation}\nlake {self.visited.index(seed)}", info


class SortedInfo(Lake):
    """Correct: equal sets and dictionaries, which another process may print in another order; an object's address."""

    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "seen": {"a", "b", "c", "d", "e"}, "by": {name: 1 for name in {"x", "y", "z"}}}  # noqa: C420


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (SaltedReward, "another process: reward is"),
        # one loop compares all of a record
        pytest.param(
            SaltedEnd, "another process: terminated is True there and False here", marks=pytest.mark.exhaustive
        ),
        pytest.param(SaltedActions, "another process: legal is", marks=pytest.mark.exhaustive),
        pytest.param(SaltedInfo, "another process: info is", marks=pytest.mark.exhaustive),
        pytest.param(SaltedInstructions, "another process: instructions is", marks=pytest.mark.exhaustive),
        (SaltedOracle, "another process: the oracle's response is"),
        (
            NumberedByVisit,
            r"another process: observation is .*lake 2.* there and .*lake 0.* here.* the seeds played before",
        ),
    ],
)
def test_what_differs_in_another_process_is_named(
    mutant: type[Lake], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    with pytest.raises(BranchabilityError, match=message):
        check_branchable(mutant, **QUICK)


@pytest.mark.slow
def test_equal_sets_are_equal_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert check_branchable(SortedInfo, **QUICK).skipped == ()
