"""`check_branchable` passes every registered environment and rejects mutants, each with the right diagnosis."""

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from corridor import Corridor
from gymnasium.envs.registration import registry
from gymnasium.utils.env_checker import check_env

from tests.fakes import Walk
from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.frozen_lake.env import LakeState
from tsr_lightning.envs.frozen_lake.maps import ENDS
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.sokoban import SokobanEnv
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.rng import Key

OURS = sorted(id for id in registry if id.startswith("tsr/"))


class Lake(TextFrozenLake):
    """The correct environment behind the mutants: a lake large enough for long episodes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"desc": ["SFFF", "FHFF", "FFFF", "FFFG"], "prompt_style": "brief", **kwargs})


# ---- mutants that break states, noise or limits


class OneGeneratorForAll(Lake):
    """Noise from a generator that all episodes and branches share."""

    chance = np.random.default_rng(0)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        super().reseed(Key(int(self.chance.integers(1 << 63))))
        return super().step(action)

    def reseed(self, key: Key, /) -> None:
        pass


class GeneratorOutsideTheState(Lake):
    """Noise from a generator that reset seeds and the state leaves out, as in most gymnasium environments."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        super().reseed(Key(int(self.np_random.integers(1 << 63))))
        return super().step(action)

    def reseed(self, key: Key, /) -> None:
        pass


class ReseedDoesNothing(Lake):
    """A branch has the real episode's noise."""

    def reseed(self, key: Key, /) -> None:
        pass


class Held:
    """Hashable, by identity, and not immutable."""

    def __init__(self, episode: Any) -> None:
        self.episode = episode


class AliasedState(Lake):
    """get_state returns an object that the environment changes later."""

    held: Held | None = None

    def _hold(self) -> None:
        if self.held is None:
            self.held = Held(super().get_state())
        self.held.episode = super().get_state()

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
        super().set_state(state.episode)
        self.held = state


class ListForAState(Lake):
    """A mutable list, returned as it is."""

    def get_state(self) -> Any:
        return list(super().get_state())


class ForgottenTurns(Lake):
    """The turns played are not restored."""

    def set_state(self, state: Any, /) -> None:
        super().set_state(state._replace(turns=0 if self._episode is None else self._episode.turns))


class ForgottenActions(Lake):
    """The actions played are not restored."""

    def __init__(self) -> None:
        super().__init__(max_turns=20)

    def set_state(self, state: Any, /) -> None:
        super().set_state(state._replace(actions=0 if self._episode is None else self._episode.actions))


class SaltedHash(Lake):
    """The state key is Python's own hash of a string."""

    def state_key(self) -> Hashable:
        return hash(str(super().state_key()))


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (OneGeneratorForAll, "shared noise: a seed gave two episodes, so there is noise from elsewhere"),
        (GeneratorOutsideTheState, "shared noise: set_state and reseed with equal keys gave two futures"),
        (ReseedDoesNothing, "reseed: it does nothing"),
        (AliasedState, "aliased state: later steps changed a state that get_state had returned"),
        (ListForAState, "state: unhashable type: 'list'"),
        (ForgottenTurns, r"counters: a turn or step limit is not restored .* remaining \d+ instead of \d+"),
        (ForgottenActions, r"counters: a turn or step limit is not restored .* remaining \d+ instead of \d+"),
        (SaltedHash, "another process: state_key is .* salted hash"),
    ],
)
def test_a_mutant_is_rejected_with_its_diagnosis(mutant: type[Lake], message: str) -> None:
    with pytest.raises(BranchabilityError, match=message) as rejected:
        check_branchable(mutant, noisy=True)
    assert "seed" in str(rejected.value)


def test_the_environment_behind_the_mutants_passes() -> None:
    report = check_branchable(Lake, noisy=True)
    assert (report.environment, report.seeds, report.noisy, report.skipped) == ("Lake", (0, 1, 2, 3, 4, 5), True, ())
    assert report.snapshots >= 12
    assert report.steps > 500


# ---- mutants that break the rest of the contract


class HalfReseeded(Lake):
    """The new noise depends on the old one."""

    def reseed(self, key: Key, /) -> None:
        super().reseed(Key(key.value ^ self.episode.key.value))


class SharedBetweenObjects(Lake):
    """Exact alone, but all environments of this class count their draws together."""

    drawn = 0

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._episode = self.get_state()
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


class StatesAreIndices(Lake):
    """A state is an index into a list that only this object has."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def get_state(self) -> Any:
        self.kept.append(super().get_state())
        return len(self.kept) - 1

    def set_state(self, state: Any, /) -> None:
        super().set_state(self.kept[state])


class ScoreInObservation(Lake):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return f"{observation}\nYou will win with {self.score():.4f}", *rest  # type: ignore[return-value]


class ScoreUsesNoise(Lake):
    """score() uses up a draw."""

    def score(self) -> float:
        score = super().score()
        self._episode = self.episode._replace(draws=self.episode.draws + 1)
        return score


class ScoreAbove1(Lake):
    def score(self) -> float:
        return 10 * super().score()


class SuccessScoresBelow1(Lake):
    def score(self) -> float:
        return 0.9 * super().score()


class EndlessBudget(Lake):
    def remaining(self) -> int:
        return 10


class SetForAStateKey(Lake):
    def state_key(self) -> Hashable:
        return frozenset(self.state.rows)


class InfoWithoutSuccess(Lake):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        *rest, info = super().step(action)
        del info["success"]
        return *rest, info  # type: ignore[return-value]


class GoesOnAfterASuccess(Lake):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = super().step(action)
        self.set_state(self.get_state()._replace(terminated=False))
        return observation, reward, False, truncated or not self.remaining(), info


class BareNames(Lake):
    """Legal actions without the form of an answer."""

    def legal_actions(self) -> list[str]:
        return ["Left", "Up"]


class AnotherLakeEachTime(Lake):
    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=None)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (HalfReseeded, "reseed: the old noise shows after it"),
        (SharedBetweenObjects, "shared noise: playing branches changed the real episode"),
        (StatesAreIndices, r"another environment: set_state raised IndexError"),
        (ScoreInObservation, r"score: 0\.\d+ is in the observation"),
        (ScoreUsesNoise, r"score: calling it, state_key\(\)"),
        (ScoreAbove1, r"score: .* is not in \[0, 1\]"),
        (SuccessScoresBelow1, r"score: it is 0\.9, not 1, in a success"),
        (EndlessBudget, "budget: remaining.* went from 10 to 10"),
        (SetForAStateKey, "state_key: .* not made of numbers, strings and tuples alone"),
        (InfoWithoutSuccess, "contract: info lacks success"),
        (GoesOnAfterASuccess, r"contract: info\['success'\] is True and the episode goes on, .* terminated=True"),
        (BareNames, "contract: .* calls '(Left|Up)' invalid"),
    ],
)
def test_other_mutants_are_rejected_with_their_diagnosis(mutant: type[Lake], message: str) -> None:
    with pytest.raises(BranchabilityError, match=message):
        check_branchable(mutant, noisy=True)


def test_a_seed_must_name_one_initial_state() -> None:
    with pytest.raises(BranchabilityError, match="reset: a seed gave two initial states"):
        check_branchable(lambda: AnotherLakeEachTime(desc=None))


def test_noise_in_an_environment_declared_exact_is_rejected() -> None:
    with pytest.raises(BranchabilityError, match="reseed: two keys gave two futures"):
        check_branchable(Lake, noisy=False)


def test_a_wrapped_limit_is_rejected() -> None:
    limited = gymnasium.wrappers.TimeLimit(gymnasium.make("tsr/FrozenLake-v0"), 3)
    with pytest.raises(BranchabilityError, match="max_episode_steps=3"):
        check_branchable(limited)


def test_missing_methods_are_rejected() -> None:
    with pytest.raises(BranchabilityError, match="FrozenLakeEnv has no instructions, get_state, set_state"):
        check_branchable(lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=-1))


BRIEF: dict[str, Any] = {"seeds": range(1), "turns": 2, "keys": 2}  # for what is skipped, whatever is found


def test_of_an_object_without_a_spec_some_checks_are_skipped() -> None:
    report = check_branchable(Lake(), **BRIEF)
    assert report.skipped == (
        "another environment: only this one object is given",
        "another process: the environment has no spec",
    )


def test_of_an_object_with_a_spec_no_check_is_skipped() -> None:
    assert check_branchable(gymnasium.make("tsr/FrozenLake-v0", size=5), **BRIEF).skipped == ()


def test_of_a_lambda_the_check_in_another_process_is_skipped() -> None:
    (skipped,) = check_branchable(lambda: Lake(success_rate=0.5), **BRIEF).skipped
    assert skipped.startswith("another process:")


def test_a_users_environment_is_found_by_its_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---- mutants that are harder to diagnose: noise that survives reseed, caches, counters and keys


class DrawnInAdvance(Lake):
    """The noise of the next turn is drawn in advance and kept in the state, where reseed leaves it."""

    ahead = Key(0)

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        begun = super().reset(**kwargs)
        self.ahead = super().get_state().key.fold_in("first")
        return begun

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        stream = super().get_state().key
        self._episode = super().get_state()._replace(key=self.ahead, draws=0)
        stepped = super().step(action)
        self.ahead = stream.fold_in("ahead")
        self._episode = super().get_state()._replace(key=stream.fold_in("stream"), draws=0)
        return stepped

    def get_state(self) -> Any:
        return super().get_state(), self.ahead

    def set_state(self, state: Any, /) -> None:
        super().set_state(state[0])
        self.ahead = state[1]

    def reseed(self, key: Key, /) -> None:
        self._episode = super().get_state()._replace(key=key, draws=0)


class DrawnInAdvanceAndReseeded(DrawnInAdvance):
    """Correct: reseed replaces the noise that was drawn in advance."""

    def reseed(self, key: Key, /) -> None:
        super().reseed(key)
        self.ahead = key.fold_in("first")


class ReseedDoesNothingAtFirst(Lake):
    """reseed does nothing before the first turn."""

    def reseed(self, key: Key, /) -> None:
        if self.get_state().turns:
            super().reseed(key)


class ScoreKnowsTheNoise(Lake):
    """The score knows the next draw."""

    def score(self) -> float:
        score = super().score()
        return score if score == 1 else score * self.episode.key.uniform(self.episode.draws)


class ScoreIsNan(Lake):
    def score(self) -> float:
        return float("nan")


class BadScoreAtReset(Lake):
    """A bad score in the initial state alone."""

    def score(self) -> float:
        return super().score() if self.get_state().turns else -1.0


class ScoreInFirstObservation(Lake):
    """The first observation contains the score."""

    def __init__(self) -> None:
        super().__init__(desc=None)

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        return f"{observation}\nYou will win with {self.score():.4f}", info


class StaleScore(Lake):
    """The score is cached, and set_state does not clear the cache."""

    cached: float | None = None

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.cached = None
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.cached = None
        return super().step(action)

    def score(self) -> float:
        if self.cached is None:
            self.cached = super().score()
        return self.cached


class StaleCell(Lake):
    """The next step continues from the cell of the last one, whatever set_state restored."""

    last: int | None = None

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        begun = super().reset(**kwargs)
        self.last = self.state.cell
        return begun

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        from_here, self.last = self.last, None
        if from_here is not None and "".join(self.state.rows)[from_here] not in ENDS:
            self._episode = self.episode._replace(state=self.state._replace(cell=from_here))
        stepped = super().step(action)
        self.last = self.state.cell
        return stepped


class HiddenStepCounter(Lake):
    """The n-th step since the reset slips as number n says, and the state leaves out n."""

    stepped = 0

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.stepped = 0
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.stepped += 1
        self._episode = self.episode._replace(draws=2 * self.stepped)
        return super().step(action)


class NotCopyable(Held):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle 'generator' object")


class StateWithALiveObject(Lake):
    def get_state(self) -> Any:
        return NotCopyable(super().get_state())

    def set_state(self, state: Any, /) -> None:
        super().set_state(state.episode)


class WithoutTheCell(Lake):
    """The state key leaves out the player's cell."""

    def state_key(self) -> Hashable:
        return self.state.rows


class WithoutTheBoxes(SokobanEnv):
    """The state key leaves out the boxes."""

    def state_key(self) -> Any:
        return super().state_key()[:-1]


class WithTheTurn(Lake):
    def state_key(self) -> Hashable:
        return super().state_key(), self.get_state().turns


class WithTheBudget(SokobanEnv):
    def state_key(self) -> Any:
        return (*super().state_key(), self.remaining())


class ClosesLater(Lake):
    """Its goal pays less the later it is reached, and its state key does not say when that is."""

    def play(self, state: LakeState, actions: tuple[str, ...], noise: Draws) -> TurnResult[LakeState]:
        result = super().play(state, actions, noise)
        return replace(result, reward=result.reward - 0.01 * self.episode.turns)


class WithTheNoise(Lake):
    def state_key(self) -> Hashable:
        return super().state_key(), self.episode.key.value


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (DrawnInAdvance, "reseed: the old noise shows after it, so a branch sees what .* drawn in advance"),
        (ReseedDoesNothingAtFirst, r"reseed: it has no effect here: .* after the reset\)"),
        (ScoreKnowsTheNoise, "score: reseed changes it, so it knows the noise to come"),
        (ScoreIsNan, r"score: nan is not in \[0, 1\]"),
        (BadScoreAtReset, r"score: -1\.0 is not in \[0, 1\]"),
        (ScoreInFirstObservation, r"score: 0\.\d+ is in the observation"),
        (StaleScore, "restore: set_state does not restore the state exactly, perhaps for a stale cache: score"),
        (StaleCell, "restore: set_state .*does not restore the state exactly, perhaps for a stale cache"),
        (HiddenStepCounter, "counters: something counts steps outside the state"),
        (StateWithALiveObject, "state: it cannot be copied .*cannot pickle 'generator' object"),
        (WithoutTheCell, "state_key: it is equal after .* add to it what makes them differ"),
        (WithoutTheBoxes, "state_key: it is equal after .* add to it what makes them differ"),
        (ClosesLater, "state_key: it is equal after .* the reward is .* add to it what makes them differ"),
        (WithTheTurn, r"state_key: it went from .* which info calls not effective: leave the turn and the budget out"),
        (WithTheBudget, r"state_key: it went from .* which info calls not effective: leave the turn and the budget"),
        (WithTheNoise, "state_key: reseed changes it, so it holds the noise"),
    ],
)
def test_subtle_mutants_are_rejected_with_their_diagnosis(mutant: type[Any], message: str) -> None:
    with pytest.raises(BranchabilityError, match=message):
        check_branchable(mutant)


# ---- correct environments that look wrong


class ManyNumbers(Lake):
    """Numbers that share digits with scores, a table that holds scores, and nan."""

    def score(self) -> float:
        return 1.0 if "".join(self.state.rows)[self.state.cell] == "G" else 1 / (41 + self.remaining())

    def show(self, state: LakeState) -> str:
        table = " ".join(f"{1 / number:.6f}" for number in range(41, 60))
        return f"{super().show(state)}\n-0.024242 {table}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        *rest, info = super().step(action)
        return *rest, {**info, "distance": float("nan")}  # type: ignore[return-value]


class ObservationHasHistory(Lake):
    """The observation has the visited cells, which the state key leaves out."""

    visited: tuple[int, ...] = ()

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.visited = ()
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.visited = (*self.visited, self.state.cell)
        observation, *rest = super().step(action)
        return f"{observation}\nbefore: {self.visited}", *rest  # type: ignore[return-value]

    def get_state(self) -> Any:
        return super().get_state(), self.visited

    def set_state(self, state: Any, /) -> None:
        super().set_state(state[0])
        self.visited = state[1]


class NumPyKey(Lake):
    def state_key(self) -> Hashable:
        return "".join(self.state.rows), (np.int64(self.state.cell), np.bool_(True), np.float32(0.5))


@pytest.mark.parametrize(
    "env",
    [
        NumPyKey,
        DrawnInAdvanceAndReseeded,
        ManyNumbers,
        ObservationHasHistory,
        lambda: Lake(success_rate=1.0),  # whose score is 1 in the initial state
        lambda: Lake(success_rate=0.99),  # whose noise hardly shows
        lambda: Lake(max_turns=9, max_actions=5),  # a budget of two parts
        lambda: Lake(desc=None, size=3, prompt_style="paper"),
        Corridor,
        lambda: Walk(),
    ],
)
def test_correct_environments_that_look_wrong_pass(env: Any) -> None:
    check_branchable(env)


# ---- every registered environment


def test_the_package_registers_environments() -> None:
    names = {"ALFWorld", "FrozenLake", "SWE", "Sokoban", "TextWorld", "WebShop"}
    assert set(OURS) == {f"tsr/{name}-v0" for name in names}


# Their own tests check these on several settings.
ELSEWHERE = ("tsr/ALFWorld-v0", "tsr/SWE-v0", "tsr/TextWorld-v0", "tsr/WebShop-v0")
OF_TEXT = [id for id in OURS if id != "tsr/SWE-v0"]  # it has messages, of which gymnasium has no space


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=pytest.mark.exhaustive if id in ELSEWHERE else []) for id in OURS]
)
def test_every_registered_environment_is_branchable(id: str) -> None:
    assert check_branchable(id).skipped == ()


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=pytest.mark.exhaustive if id in ELSEWHERE else []) for id in OF_TEXT]
)
def test_every_registered_environment_passes_gymnasiums_checker(id: str) -> None:
    check_env(gymnasium.make(id).unwrapped)  # its warnings are errors here


@pytest.mark.parametrize("id", OURS)
def test_every_registered_environment_is_made_without_wrappers(id: str) -> None:
    env = make_env(id)
    assert isinstance(env, gymnasium.Env)
    assert env.unwrapped is env
