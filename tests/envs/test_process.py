"""Environments in processes of their own give what they give in this one, and their failures are noticed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import driver, tasks
from tsr_lightning.envs.base import EnvBroken, EnvDied, EnvRaised, EnvTimedOut, HasOracle, PreparesInstances
from tsr_lightning.envs.boundary import Call, bounded
from tsr_lightning.envs.make import make_env, missing_methods
from tsr_lightning.envs.process import ProcessEnv, process_env
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.mixture import MixtureEntry
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Expert, Sample

MISBEHAVING = "tests.misbehaving:Misbehaving-v0"
SHIPPED = ["tsr/FrozenLake-v0", "tsr/Sokoban-v0", "tsr/WebShop-v0"]


@pytest.fixture
def misbehaving(request: pytest.FixtureRequest) -> Any:
    """Makes environments that are closed after the test."""

    def make(timeout: float | None = None, **kwargs: Any) -> ProcessEnv:
        env = process_env(MISBEHAVING, {"env": "tests.corridor:Corridor-v0", **kwargs}, timeout)
        request.addfinalizer(env.close)
        env.reset(seed=1)
        return env

    return make


def pid(env: ProcessEnv) -> int:
    assert env._worker is not None
    return env._worker._process.pid


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("id", SHIPPED)
def test_a_process_changes_no_trajectory(id: str) -> None:
    searches = tasks(Expert(0.3), 8) + tasks(Beam(2, 3), 4)
    expected = driver(make_env(id), limits=TokenLimits(10**6)).run(searches)
    env = process_env(id, {})
    assert driver(env, limits=TokenLimits(10**6)).run(searches) == expected
    env.close()


def test_two_processes_step_beside_each_other_and_change_no_trajectory() -> None:
    def make() -> ProcessEnv:
        return process_env("tests.corridor:Corridor-v0", {"slip": 0.2})

    searches = tasks(Sample(), 40)
    workers = [make(), make()]
    expected = driver(make_env("tests.corridor:Corridor-v0", slip=0.2)).run(searches)
    assert driver(make_env("tests.corridor:Corridor-v0"), workers=workers).run(searches) == expected
    assert pid(workers[0]) != pid(workers[1])
    for env in workers:
        env.close()


def test_the_contract_is_met_with_an_oracle_where_there_is_one() -> None:
    sokoban, corridor = process_env("tsr/Sokoban-v0", {}), process_env("tests.corridor:Corridor-v0", {})
    assert missing_methods(sokoban) == missing_methods(corridor) == []
    assert isinstance(sokoban, HasOracle)
    assert not isinstance(corridor, HasOracle)
    assert sokoban.class_name == "SokobanEnv"


def test_a_state_is_known_without_asking_for_it(misbehaving: Any) -> None:
    """After `set_state` and `reseed` too, which are sent with the next call."""
    env, here = misbehaving(), make_env("tests.corridor:Corridor-v0", slip=0.0)
    here.reset(seed=1)
    start = env.get_state()
    assert start == here.get_state()
    for each in (env, here):
        each.step("rr")
        each.set_state(start)
        each.reseed(Key(3))
    assert env.get_state() == here.get_state() != start  # it holds the key
    assert (env.state_key(), env.remaining(), env.score()) == (here.state_key(), here.remaining(), here.score())
    assert env.instructions == here.instructions


def test_seeds_are_announced_before_an_episode_and_within_one() -> None:
    """And the state stays as it is, what is pending too."""
    env = process_env("tests.own_processes:Prepares-v0", {})
    assert isinstance(env, PreparesInstances)
    assert not isinstance(process_env("tests.corridor:Corridor-v0", {}), PreparesInstances)
    env.prepare([3, 4])
    env.reset(seed=3)
    assert env.instructions == "prepared: (3, 4)"
    start = env.get_state()
    env.step("r")
    env.set_state(start)
    env.prepare([5])
    assert env.get_state() == start
    assert env.instructions == "prepared: (5,)"
    env.close()


def test_an_entry_point_that_is_no_class_is_called_in_other_processes_alone(tmp_path: Path) -> None:
    entry = MixtureEntry("tests.own_processes:MadeByFunction-v0", {"folder": str(tmp_path)})
    first, second = entry.make_process(None), entry.make_process(None)
    assert len(list(tmp_path.iterdir())) == 1  # one process said what both are
    assert isinstance(first, PreparesInstances)
    assert (first.class_name, second.class_name) == ("Prepares", "Prepares")
    first.reset(seed=0)
    first.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert not (tmp_path / str(os.getpid())).exists()
    with pytest.raises(RunError, match=r"__init__ of .*DiesWhenMade-v0 failed: EnvDied: .* exit status 7"):
        MixtureEntry("tests.own_processes:DiesWhenMade-v0").make_process(None)


def test_a_state_that_cannot_be_pickled_is_refused_by_name() -> None:
    env = process_env("tests.own_processes:LiveState-v0", {})
    sentence = (
        r"reset of tests\.own_processes:LiveState-v0 \(instance 3\) is wrong: state cannot be pickled, which "
        r"data.env_processes needs \(.*lambda.*\); make it of plain values, or set data.env_processes to false"
    )
    with pytest.raises(RunError, match=sentence):
        bounded(Call(env, "reset", 3), lambda: env.reset(seed=3))
    env.close()


def test_a_step_that_hangs_is_ended_with_its_process(misbehaving: Any) -> None:
    env = misbehaving(timeout=0.2, hangs=1.0)
    state, hung = env.get_state(), pid(env)
    started = time.monotonic()
    with pytest.raises(EnvTimedOut, match=r"no answer within 0\.2 s"):
        env.step("r")
    assert time.monotonic() - started < 5
    assert not lives(hung)
    env.set_state(state)
    assert env.get_state() == state  # in a new process
    assert pid(env) != hung


def test_an_interrupted_call_gives_no_later_one_its_answer(misbehaving: Any, tmp_path: Path) -> None:
    """As Ctrl-C in a notebook does, after which the environment is used again."""
    env = misbehaving(folder=str(tmp_path))
    states = []
    for seed in range(3):
        env.reset(seed=seed)
        states.append(env.get_state())
    assert len({*states}) > 1

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    hanging = misbehaving(hangs=1.0)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            hanging.step("r")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for seed in range(3):
        hanging.reset(seed=seed)
        assert hanging.get_state() == states[seed]


def test_the_death_of_the_process_is_noticed(misbehaving: Any) -> None:
    env = misbehaving(dies=1.0)
    state = env.get_state()
    with pytest.raises(EnvDied, match="exit status 7"):
        env.step("r")
    env.set_state(state)
    assert env.remaining() == 3


def test_an_error_comes_back_with_its_traceback_and_the_environment_is_made_anew(misbehaving: Any) -> None:
    env = misbehaving(raises=1.0)
    state, first = env.get_state(), pid(env)
    with pytest.raises(EnvRaised, match="ConnectionError: the page is gone") as caught:
        env.step("r")
    assert "misbehaving.py" in caught.value.__notes__[0]
    with pytest.raises(EnvBroken, match=r"ResetNeeded: there is no episode yet.* at .*text_env\.py:\d+"):
        process_env("tsr/Sokoban-v0", {}).get_state()  # before a reset
    env.set_state(state)
    assert env.get_state() == state
    assert pid(env) == first


def test_a_mistake_in_the_arguments_is_one(misbehaving: Any) -> None:
    with pytest.raises(ConfigError):
        process_env("tsr/Sokoban-v0", {"boxes": -1}).reset(seed=0)


def test_the_process_ends_with_the_object(misbehaving: Any) -> None:
    env = process_env("tests.corridor:Corridor-v0", {})
    env.reset(seed=0)
    process = pid(env)
    assert lives(process)
    del env
    assert not lives(process)


def test_repetition_bears_all_kinds_of_failure(misbehaving: Any, tmp_path: Path) -> None:
    """Of every twentieth step each; the trajectories are those without failures."""
    searches = tasks(Sample(), 20)
    expected = driver(make_env("tests.corridor:Corridor-v0", slip=0.0)).run(searches)
    env = misbehaving(timeout=0.3, raises=0.05, hangs=0.05, dies=0.05, folder=str(tmp_path))
    runner = driver(env, retry=Retrying(10))
    assert runner.survivors(searches) == expected
    noted = [name.partition(".")[0] for name in os.listdir(tmp_path)]
    counts = {"raised": runner.costs.env_errors, "hung": runner.costs.env_timeouts, "died": runner.costs.env_deaths}
    assert counts == {kind: noted.count(kind) for kind in counts}
    assert all(counts.values())
