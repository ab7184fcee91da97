"""`check_branchable` passes every registered environment, and rejects the mutants, each for what is wrong with it."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from corridor import Corridor
from gymnasium.envs.registration import registry
from gymnasium.utils.env_checker import check_env

import tsr_lightning.envs
from tests.fakes import Walk
from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.sokoban import SokobanEnv
from tsr_lightning.rng import Key

OURS = sorted(id for id in registry if id.startswith("tsr/"))


class Lake(TextFrozenLake):
    """What the mutants are made from: a lake large enough for long episodes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"desc": ["SFFF", "FHFF", "FFFF", "FFFG"], "prompt_style": "brief", **kwargs})


# ---- the five mutants of the contract, some in two guises


class OneGeneratorForAll(Lake):
    """Chance from a generator that all episodes and branches share."""

    chance = np.random.default_rng(0)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        super().reseed(Key(int(self.chance.integers(1 << 63))))
        return super().step(action)

    def reseed(self, key: Key, /) -> None:
        pass


class GeneratorOutsideTheState(Lake):
    """The same as most gymnasium environments do it: seeded by reset, and no part of the state."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        super().reseed(Key(int(self.np_random.integers(1 << 63))))
        return super().step(action)

    def reseed(self, key: Key, /) -> None:
        pass


class DeafToReseed(Lake):
    """The branch is played under the real episode's noise."""

    def reseed(self, key: Key, /) -> None:
        pass


class Held:
    """Hashable, by identity, and not immutable."""

    def __init__(self, moment: Any) -> None:
        self.moment = moment


class AliasedState(Lake):
    """get_state returns what the environment goes on writing to."""

    held: Held | None = None

    def _hold(self) -> None:
        if self.held is None:
            self.held = Held(super().get_state())
        self.held.moment = super().get_state()

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.held = None
        begun = super().reset(**kwargs)
        self._hold()
        return begun

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        stepped = super().step(action)
        self._hold()
        return stepped

    def reseed(self, key: Key, /) -> None:
        super().reseed(key)
        self._hold()

    def get_state(self) -> Any:
        return self.held

    def set_state(self, state: Any, /) -> None:
        super().set_state(state.moment)
        self.held = state


class ListForAState(Lake):
    """A mutable list, returned as it is."""

    def get_state(self) -> Any:
        return list(super().get_state())


class ForgottenTurns(Lake):
    """The turns played are not restored."""

    def set_state(self, state: Any, /) -> None:
        super().set_state(state._replace(turns=0 if self._moment is None else self._moment.turns))


class ForgottenActions(Lake):
    """The actions played are not restored."""

    def __init__(self) -> None:
        super().__init__(max_turns=20)

    def set_state(self, state: Any, /) -> None:
        super().set_state(state._replace(actions=0 if self._moment is None else self._moment.actions))


class SaltedHash(Lake):
    """The situation is Python's own hash of a string."""

    def state_key(self) -> Hashable:
        return hash(str(super().state_key()))


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (OneGeneratorForAll, "shared noise: a seed gave two episodes, so chance comes from somewhere else"),
        (GeneratorOutsideTheState, "shared noise: set_state and reseed with equal keys gave two futures"),
        (DeafToReseed, "reseed: it does nothing"),
        (AliasedState, "aliased state: later steps changed a state that get_state had returned"),
        (ListForAState, "state: unhashable type: 'list'"),
        (ForgottenTurns, r"counters: a turn or step limit is not restored .* remaining \d+ instead of \d+"),
        (ForgottenActions, r"counters: a turn or step limit is not restored .* remaining \d+ instead of \d+"),
        (SaltedHash, "another process: state_key is .* salted hash"),
    ],
)
def test_a_mutant_is_rejected_for_what_is_wrong_with_it(mutant: type[Lake], said: str) -> None:
    with pytest.raises(BranchabilityError, match=said) as rejected:
        check_branchable(mutant, noisy=True)
    assert "seed" in str(rejected.value)


def test_what_the_mutants_are_made_from_passes() -> None:
    report = check_branchable(Lake, noisy=True)
    assert (report.environment, report.seeds, report.noisy, report.skipped) == ("Lake", (0, 1, 2, 3, 4, 5), True, ())
    assert report.moments >= 12
    assert report.steps > 500


# ---- and others


class HalfReseeded(Lake):
    """Something of the old noise stays."""

    def reseed(self, key: Key, /) -> None:
        super().reseed(Key(key.value ^ self.get_state().key))


class SharedBetweenObjects(Lake):
    """Exact alone, but all such environments count their draws together."""

    drawn = 0

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._moment = self.get_state()
        stepped = super().step(action)
        SharedBetweenObjects.drawn = super().get_state().draws
        return stepped

    def get_state(self) -> Any:
        return super().get_state()._replace(draws=SharedBetweenObjects.drawn)

    def set_state(self, state: Any, /) -> None:
        super().set_state(state)
        SharedBetweenObjects.drawn = state.draws

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        SharedBetweenObjects.drawn = 0
        return super().reset(**kwargs)

    def reseed(self, key: Key, /) -> None:
        super().reseed(key)
        SharedBetweenObjects.drawn = 0


class StatesKeptAtHome(Lake):
    """A state is a number, under which this object, and no other one, remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def get_state(self) -> Any:
        self.kept.append(super().get_state())
        return len(self.kept) - 1

    def set_state(self, state: Any, /) -> None:
        super().set_state(self.kept[state])


class ToldScore(Lake):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return f"{observation}\nYou will win with {self.score():.4f}", *rest  # type: ignore[return-value]


class ScoreThatPlays(Lake):
    """Asking for the score uses up a draw."""

    def score(self) -> float:
        score = super().score()
        moment = self.get_state()
        self._moment = moment._replace(draws=moment.draws + 1)
        return score


class HighScore(Lake):
    def score(self) -> float:
        return 10 * super().score()


class ModestScore(Lake):
    def score(self) -> float:
        return 0.9 * super().score()


class EndlessBudget(Lake):
    def remaining(self) -> int:
        return 10


class SetForASituation(Lake):
    def state_key(self) -> Hashable:
        return frozenset(self.get_state().rows)


class NoSuccess(Lake):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        *rest, info = super().step(action)
        del info["success"]
        return *rest, info  # type: ignore[return-value]


class BareNames(Lake):
    """Legal actions that cannot be said."""

    def legal_actions(self) -> list[str]:
        return ["Left", "Up"]


class OtherLakeEachTime(Lake):
    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=None)


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (HalfReseeded, "reseed: the noise of before shows after it"),
        (SharedBetweenObjects, "shared noise: playing branches changed the real episode"),
        (StatesKeptAtHome, r"another environment: set_state raised IndexError"),
        (ToldScore, r"score: 0\.\d+ stands in the observation"),
        (ScoreThatPlays, "score: asking for it"),
        (HighScore, r"score: .* is not in \[0, 1\]"),
        (ModestScore, r"score: it is 0\.9, not 1, in a success"),
        (EndlessBudget, "budget: remaining.* went from 10 to 10"),
        (SetForASituation, "state_key: .* not made of numbers, strings and tuples alone"),
        (NoSuccess, "contract: info lacks success"),
        (BareNames, "contract: .* calls '(Left|Up)' invalid"),
    ],
)
def test_what_else_breaks_the_contract(mutant: type[Lake], said: str) -> None:
    with pytest.raises(BranchabilityError, match=said):
        check_branchable(mutant, noisy=True)


def test_a_seed_must_name_one_beginning() -> None:
    with pytest.raises(BranchabilityError, match="reset: a seed gave two beginnings"):
        check_branchable(lambda: OtherLakeEachTime(desc=None))


def test_an_environment_said_to_be_exact_is_held_to_it() -> None:
    with pytest.raises(BranchabilityError, match="reseed: two keys gave two futures"):
        check_branchable(Lake, noisy=False)


def test_a_wrapped_limit_is_refused() -> None:
    limited = gymnasium.wrappers.TimeLimit(gymnasium.make("tsr/FrozenLake-v0"), 3)
    with pytest.raises(BranchabilityError, match="max_episode_steps=3"):
        check_branchable(limited)


def test_what_lacks_a_method_is_refused() -> None:
    with pytest.raises(BranchabilityError, match="FrozenLakeEnv has no instructions, get_state, set_state"):
        check_branchable(lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=-1))


def test_a_mere_object_is_checked_as_far_as_it_goes() -> None:
    report = check_branchable(Lake(), noisy=True)
    assert report.skipped == (
        "another environment: only this one object is given",
        "another process: the environment has no spec",
    )


def test_an_object_with_a_spec_is_checked_to_the_end() -> None:
    assert check_branchable(gymnasium.make("tsr/FrozenLake-v0", size=5)).skipped == ()


def test_a_function_without_a_name_is_not_looked_for_elsewhere() -> None:
    (skipped,) = check_branchable(lambda: Lake(success_rate=0.5)).skipped
    assert skipped.startswith("another process:")


def test_an_environment_of_ones_own_by_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pond.py").write_text(
        "import gymnasium\n"
        "from tsr_lightning.envs.frozen_lake import TextFrozenLake\n\n\n"
        "class Pond(TextFrozenLake):\n"
        "    pass\n\n\n"
        "gymnasium.register('ponds/Pond-v0', 'pond:Pond', kwargs={'frozen': 1.0})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        report = check_branchable("pond:ponds/Pond-v0", kwargs={"size": 3}, noisy=True)
        assert report.skipped == ()
    finally:
        registry.pop("ponds/Pond-v0", None)


# ---- noise that reseed does not replace, scores, caches, counters and keys, each named for what it is


class DrawnInAdvance(Lake):
    """The noise of the next turn is drawn in advance and kept in the state, where reseed leaves it."""

    ahead = 0

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        begun = super().reset(**kwargs)
        self.ahead = Key(super().get_state().key).fold_in("first").value
        return begun

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        stream = super().get_state().key
        self._moment = super().get_state()._replace(key=self.ahead, draws=0)
        stepped = super().step(action)
        self.ahead = Key(stream).fold_in("ahead").value
        self._moment = super().get_state()._replace(key=Key(stream).fold_in("stream").value, draws=0)
        return stepped

    def get_state(self) -> Any:
        return super().get_state(), self.ahead

    def set_state(self, state: Any, /) -> None:
        super().set_state(state[0])
        self.ahead = state[1]

    def reseed(self, key: Key, /) -> None:
        self._moment = super().get_state()._replace(key=key.value, draws=0)


class DrawnInAdvanceAndAnew(DrawnInAdvance):
    """Correct: reseed draws anew what is kept."""

    def reseed(self, key: Key, /) -> None:
        super().reseed(key)
        self.ahead = key.fold_in("first").value


class DeafAfterReset(Lake):
    """reseed does nothing before the first turn."""

    def reseed(self, key: Key, /) -> None:
        if self.get_state().turns:
            super().reseed(key)


class SeesTheNoise(Lake):
    """The score knows the next draw."""

    def score(self) -> float:
        moment, score = self.get_state(), super().score()
        return score if score == 1 else score * Key(moment.key).uniform(moment.draws)


class NotANumber(Lake):
    def score(self) -> float:
        return float("nan")


class WrongAtReset(Lake):
    """The score at the beginning, and only there."""

    def score(self) -> float:
        return super().score() if self.get_state().turns else -1.0


class ToldAtReset(Lake):
    """The first observation tells the score."""

    def __init__(self) -> None:
        super().__init__(desc=None)

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        return f"{observation}\nYou will win with {self.score():.4f}", info


class StaleScore(Lake):
    """The score is remembered, and set_state does not forget it."""

    remembered: float | None = None

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.remembered = None
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.remembered = None
        return super().step(action)

    def score(self) -> float:
        if self.remembered is None:
            self.remembered = super().score()
        return self.remembered


class StaleCell(Lake):
    """The next step goes on from where the last one ended, wherever set_state went."""

    last: int | None = None

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        begun = super().reset(**kwargs)
        self.last = self.get_state().cell
        return begun

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        from_here, self.last = self.last, None
        if from_here is not None and not self._over(self.get_state()._replace(cell=from_here)):
            self._moment = self.get_state()._replace(cell=from_here)
        stepped = super().step(action)
        self.last = self.get_state().cell
        return stepped


class HiddenStepCounter(Lake):
    """The n-th step since the reset slips as number n says, and n is no part of the state."""

    stepped = 0

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.stepped = 0
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.stepped += 1
        self._moment = self.get_state()._replace(draws=2 * self.stepped)
        return super().step(action)


class Living(Held):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle 'generator' object")


class StateThatLives(Lake):
    def get_state(self) -> Any:
        return Living(super().get_state())

    def set_state(self, state: Any, /) -> None:
        super().set_state(state.moment)


class WithoutTheCell(Lake):
    """The situation leaves out where the player stands."""

    def state_key(self) -> Hashable:
        return self.get_state().rows


class WithoutTheBoxes(SokobanEnv):
    """The situation leaves out where the boxes stand."""

    def state_key(self) -> Any:
        return super().state_key()[:-1]


class WithTheTurn(Lake):
    def state_key(self) -> Hashable:
        return super().state_key(), self.get_state().turns


class WithTheBudget(SokobanEnv):
    def state_key(self) -> Any:
        return (*super().state_key(), self.remaining())


class WithTheNoise(Lake):
    def state_key(self) -> Hashable:
        return super().state_key(), self.get_state().key


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (DrawnInAdvance, "reseed: the noise of before shows after it, so a branch sees what .* draws in advance"),
        (DeafAfterReset, r"reseed: it is not heeded here: .* after the reset\)"),
        (SeesTheNoise, "score: reseed changes it, so it knows the noise to come"),
        (NotANumber, r"score: nan is not in \[0, 1\]"),
        (WrongAtReset, r"score: -1\.0 is not in \[0, 1\]"),
        (ToldAtReset, r"score: 0\.\d+ stands in the observation"),
        (StaleScore, "restore: set_state does not bring a moment back exactly, perhaps for a cache gone stale: score"),
        (StaleCell, "restore: set_state .*does not bring a moment back exactly, perhaps for a cache gone stale"),
        (HiddenStepCounter, "counters: something counts the steps outside the state"),
        (StateThatLives, "state: it cannot be copied .*cannot pickle 'generator' object"),
        (WithoutTheCell, "state_key: it is one and the same after .* put into it what makes them differ"),
        (WithoutTheBoxes, "state_key: it is one and the same after .* put into it what makes them differ"),
        (WithTheTurn, r"state_key: it went from .* which info calls not effective: leave the turn and the budget out"),
        (WithTheBudget, r"state_key: it went from .* which info calls not effective: leave the turn and the budget"),
        (WithTheNoise, "state_key: reseed changes it, so it holds the noise"),
    ],
)
def test_what_is_hard_to_see_is_named_for_what_it_is(mutant: type[Any], said: str) -> None:
    with pytest.raises(BranchabilityError, match=said):
        check_branchable(mutant)


# ---- what looks wrong and is right


class ManyNumbers(Lake):
    """Numbers that share digits with scores, a table that holds scores, and nan."""

    def score(self) -> float:
        return 1.0 if super().score() == 1.0 and self._letter(self.get_state()) == "G" else 1 / (41 + self.remaining())

    def _say(self, *, reward: float | None, problem: str) -> str:
        table = " ".join(f"{1 / number:.6f}" for number in range(41, 60))
        return f"{super()._say(reward=reward, problem=problem)}\n-0.024242 {table}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        *rest, info = super().step(action)
        return *rest, {**info, "distance": float("nan")}  # type: ignore[return-value]


class TellsTheWay(Lake):
    """The observation tells the cells visited, which are no part of the situation."""

    visited: tuple[int, ...] = ()

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.visited = ()
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.visited = (*self.visited, super().get_state().cell)
        observation, *rest = super().step(action)
        return f"{observation}\nbefore: {self.visited}", *rest  # type: ignore[return-value]

    def get_state(self) -> Any:
        return super().get_state(), self.visited

    def set_state(self, state: Any, /) -> None:
        super().set_state(state[0])
        self.visited = state[1]


@pytest.mark.parametrize(
    "right",
    [
        DrawnInAdvanceAndAnew,
        ManyNumbers,
        TellsTheWay,
        lambda: Lake(success_rate=1.0),  # whose score is 1 at the beginning
        lambda: Lake(success_rate=0.99),  # in which chance hardly shows
        lambda: Lake(max_turns=9, max_actions=5),  # a budget of two parts
        lambda: Lake(desc=None, size=3, prompt_style="paper"),
        Corridor,
        lambda: Walk(),
    ],
)
def test_what_looks_wrong_and_is_right_passes(right: Any) -> None:
    check_branchable(right)


# ---- every registered environment


def test_the_package_registers_environments() -> None:
    assert tsr_lightning.envs.__name__
    assert "tsr/FrozenLake-v0" in OURS


@pytest.mark.parametrize("id", OURS)
def test_every_registered_environment_can_be_branched(id: str) -> None:
    assert check_branchable(id).skipped == ()


@pytest.mark.parametrize("id", OURS)
def test_every_registered_environment_passes_gymnasiums_checker(id: str) -> None:
    check_env(gymnasium.make(id).unwrapped)  # its warnings are errors here


@pytest.mark.parametrize("id", OURS)
def test_every_registered_environment_is_made_without_wrappers(id: str) -> None:
    env = make_env(id)
    assert isinstance(env, gymnasium.Env)
    assert env.unwrapped is env
