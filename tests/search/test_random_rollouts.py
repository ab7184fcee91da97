"""Random play as a score: what it plays, what it is worth, and that equal states are worth the same."""

from typing import Any

import pytest

from tests.fakes import Walk, driver, tasks
from tsr_lightning.envs.base import EnvRaised, HasRandomPlay
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.process import process_env
from tsr_lightning.envs.random_play import check_random_play, play_randomly
from tsr_lightning.envs.sokoban import SokobanEnv
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.backups import bounded_score
from tsr_lightning.rng import Key
from tsr_lightning.search.random_rollouts import BestSuccess, MeanSuccess, RandomRollouts, RolloutValue, ShareSolved
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.scorers import EnvironmentScore, WeightedSum
from tsr_lightning.search.strategies import Beam

KEYS = [Key(7).fold_in(number) for number in range(200)]
LONG: dict[str, Any] = {"max_turns": 1000, "actions_per_turn": 1, "max_actions": 1000}
TASKS = [SokobanEnv(max_solution=4, **LONG), TextFrozenLake(**LONG), TextFrozenLake(success_rate=1.0, **LONG)]


class Stepped:
    """An environment without random play of its own, which is stepped instead."""

    def __init__(self, env: Any) -> None:
        self.reset, self.step, self.reseed = env.reset, env.step, env.reseed
        self.get_state, self.set_state = env.get_state, env.set_state
        self.legal_actions, self.state_key = env.legal_actions, env.state_key


@pytest.mark.parametrize("env", TASKS, ids=["Sokoban", "slippery ice", "ice"])
def test_play_from_memory_is_that_of_steps(env: Any) -> None:
    """The same actions and the same noise, though states are remembered and no text is read."""
    env.reset(seed=3)
    state, stepped = env.get_state(), Stepped(env)
    assert not isinstance(stepped, HasRandomPlay)
    found = env.play_randomly(KEYS, 25)
    assert env.get_state() == state
    assert found == play_randomly(stepped, state, KEYS, 25)  # type: ignore[arg-type]
    env.set_state(state)
    assert found == TextEnv.play_randomly(env, KEYS, 25)  # which the lake does not use
    assert len(set(found)) > 1
    assert None in found


class Forgetful(SokobanEnv):
    most_places = 3


def test_what_is_forgotten_in_between_is_played_again_alike() -> None:
    """One call of many rollouts remembers no more than its limit and the places of one rollout."""
    full, short = SokobanEnv(max_solution=4, **LONG), Forgetful(max_solution=4, **LONG)
    for env in (full, short):
        env.reset(seed=3)
    assert short.play_randomly(KEYS, 6) == full.play_randomly(KEYS, 6)
    assert len(full._map._places) > 10
    assert len(short._map._places) <= 3 + 7


def test_play_goes_past_the_budget_of_an_episode() -> None:
    env = SokobanEnv(max_turns=1, actions_per_turn=2, max_actions=2, min_solution=2, max_solution=2)
    env.reset(seed=0)
    steps = [step for step in env.play_randomly(KEYS, 60) if step is not None]
    assert max(steps) > 2


def test_the_share_that_solves_is_the_probability_of_it() -> None:
    """On the lake S H / F G without slip, with p0 at S and p1 at F: p0 = (2 p0 + p1) / 4, p1 = (2 p1 + p0 + 1) / 4, so
    p0 = 1/3 and p1 = 2/3. The standard error of 2,000 rollouts is 0.011."""
    env = TextFrozenLake(desc=["SH", "FG"], success_rate=1.0)
    env.reset(seed=0)
    keys = [Key(number) for number in range(2000)]
    assert ShareSolved()(env.play_randomly(keys, 200)) == pytest.approx(1 / 3, abs=0.033)
    env.step("<think></think><answer>Down</answer>")
    assert ShareSolved()(env.play_randomly(keys, 200)) == pytest.approx(2 / 3, abs=0.033)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (MeanSuccess(0.5), (0.5 + 0.125) / 4),  # of 1 and 3 actions, and two failures
        (MeanSuccess(1.0), 0.5),
        (BestSuccess(0.5), 0.5),
        (ShareSolved(), 0.5),
    ],
)
def test_values_of_rollouts(value: RolloutValue, expected: float) -> None:
    assert value([1, None, 3, None]) == expected
    assert value([None]) == 0


def test_a_process_plays_as_the_environment_in_it() -> None:
    env = make_env("tsr/FrozenLake-v0")
    elsewhere: Any = process_env("tsr/FrozenLake-v0", {})
    try:
        for each in (env, elsewhere):
            each.reset(seed=1)
        assert elsewhere.play_randomly(KEYS[:20], 30) == env.play_randomly(KEYS[:20], 30)  # type: ignore[attr-defined]
    finally:
        elsewhere.close()


class Counting(Walk):
    """Counts the rollouts from each state."""

    def __init__(self) -> None:
        super().__init__(slip=0.0)
        self.played: list[int] = []

    def play_randomly(self, keys: list[Key], horizon: int, /) -> list[int | None]:
        self.played.append(self.place)
        return [1 + key.bits() % horizon for key in keys]


def test_equal_states_of_a_search_are_scored_once_and_alike() -> None:
    env = Counting()
    beam = Beam(2, 4, RandomRollouts(rollouts=3))
    run = driver(env, keep_tree=True)
    [found] = run.run(tasks(beam, 1))
    scores: dict[tuple[str, int], set[float | None]] = {}
    for each in found.tree:
        scores.setdefault((each.state_key, each.remaining), set()).add(each.score)
    assert all(len(of_state) == 1 for of_state in scores.values())
    open_states = {(each.state_key, each.remaining) for each in found.tree if not each.succeeded}
    assert len(env.played) == len(open_states)
    assert run.costs.seconds_environment > 0


class Unplayable(Walk):
    """Fails where random play begins in one of its states."""

    def play_randomly(self, keys: list[Key], horizon: int, /) -> list[int | None]:
        if self.place == 3:
            raise EnvRaised("no play from here")
        return [3] * len(keys)


def test_a_state_from_which_play_fails_is_lost_and_has_no_value() -> None:
    beam = Beam(2, 4, RandomRollouts(rollouts=2, value=MeanSuccess(0.5)))
    whole, failing = (driver(env, keep_tree=True, retry=Retrying(0)) for env in (Walk(), Unplayable()))
    assert None not in whole.survivors(tasks(beam, 40))
    found = [one for one in failing.survivors(tasks(beam, 40)) if one]
    assert whole.costs.candidates_lost == 0
    assert 20 < len(found) <= 40 - failing.costs.trajectories_lost
    assert failing.costs.candidates_lost > 10
    open_ones = [each for one in found for each in one.tree if each.score is not None and not each.done]
    assert len(open_ones) > 100
    assert {bounded_score(each) for each in open_ones} == {0.125}  # and no 0 of a state that was not played


class ReadsItself(SokobanEnv):
    """Its turns read the environment's own state, which is the one that a turn is played in."""

    def play(self, state: Any, actions: tuple[str, ...], noise: Any) -> Any:
        return super().play(self.state, actions, noise)


def test_a_task_may_play_from_its_own_state() -> None:
    found = []
    for kind in (SokobanEnv, ReadsItself):
        env = kind(min_solution=2, max_solution=4)
        env.reset(seed=1)
        found.append(env.play_randomly(KEYS, 40))
    assert found[0] == found[1]
    assert any(found[0])


def test_searches_side_by_side_draw_what_each_draws_alone() -> None:
    beam = Beam(1, 4, RandomRollouts(rollouts=5, horizon=20))
    together = driver(concurrency=256).run(tasks(beam, 8))
    assert together == driver(concurrency=1).run(tasks(beam, 8))
    assert len({trajectory.turns for trajectory in together}) > 1


def test_a_part_of_a_sum_is_played_too() -> None:
    both = WeightedSum([EnvironmentScore(), RandomRollouts(rollouts=2)], [1.0, 0.5])
    assert driver().run(tasks(Beam(1, 2, both), 2)) != driver().run(tasks(Beam(1, 2), 2))
    with pytest.raises(ConfigError, match="does not list any"):
        both.check(Blind())  # type: ignore[arg-type]


class Blind:
    """Lists no actions."""


class Silent(Walk):
    """Has a list of actions that is empty."""

    def legal_actions(self) -> list[str]:
        return []


class OwnNoise(Walk):
    """Slips as a generator of its own says, which no reseed sets."""

    drawn_ever = 0

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.drawn_ever += 1
        self.key, self.drawn = Key(99), self.drawn_ever
        return super().step(action)


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="RandomRollouts plays random legal actions, and Blind does not list any: add"
    ):
        RandomRollouts().check(Blind())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="plays random legal actions, and Silent lists none in its first state"):
        RandomRollouts().check(Silent())
    with pytest.raises(ConfigError, match=r"draws of its own, and .* ended differently: let reseed set all chance"):
        RandomRollouts().check(OwnNoise(slip=0.5))
    check_random_play(Walk(slip=0.5), "RandomRollouts")


@pytest.mark.parametrize("arguments", [{"rollouts": 0}, {"horizon": 0}])
def test_nothing_to_play_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"RandomRollouts\.\w+ is 0: "):
        RandomRollouts(**arguments)
