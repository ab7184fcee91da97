"""Environments that step beside generation: the same trajectories, and side by side in truth, shown by what would wait
for ever if they were not."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from test_search import FEW

from tests.fakes import Guided, Scripted, Walk, driver, tasks
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Expert, Sample, Strategy

PATIENCE = 20.0  # seconds after which a wait is for ever


class Yielding(Guided):
    """Lets other threads run in the middle of a step."""

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.get_state()
        time.sleep(0)
        if self.get_state() != before:
            raise AssertionError("two threads step one environment")
        return super().step(action)


class Awaiting(Walk):
    """Steps only when something has happened."""

    def __init__(self, event: threading.Event, patience: float) -> None:
        super().__init__()
        self.event = event
        self.patience = patience

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self.event.wait(self.patience):
            raise TimeoutError("nothing was generated meanwhile")
        return super().step(action)


class Announcing(Scripted):
    """Tells when it is asked for a second wave."""

    def __init__(self) -> None:
        super().__init__()
        self.second = threading.Event()

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        if self.calls:
            self.second.set()
        return super().generate(prompts, temperature)


class Meeting(Walk):
    """Steps only together with others."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__(slip=0)
        self.barrier = barrier

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.barrier.wait(PATIENCE)
        return super().step(action)


class Falling(Walk):
    """Falls over at its third step."""

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.turn == 2:
            raise ConnectionError("the page is gone")
        return super().step(action)


@pytest.mark.parametrize("strategy", FEW, ids=repr)
@pytest.mark.parametrize("concurrency", [1, 7, 256])
def test_workers_change_no_trajectory(strategy: Strategy, concurrency: int) -> None:
    searches = tasks(strategy, 16)
    in_turn = driver(Guided())
    expected = in_turn.run(searches)
    for count in (1, 3):
        plays = driver(Guided(), concurrency=concurrency, workers=[Yielding() for _ in range(count)])
        assert plays.run(searches) == expected
        assert plays.costs.env_steps == in_turn.costs.env_steps
        assert plays.costs.tokens_generated == in_turn.costs.tokens_generated


@pytest.mark.parametrize("name", ["Sokoban", "FrozenLake", "WebShop"])
def test_our_own_environments_share_nothing_that_threads_could_spoil(name: str) -> None:
    """Their solvers too, which remember much."""

    def made() -> Branchable:
        return make_env(f"tsr/{name}-v0")

    searches = tasks(Expert(0.3), 24)
    expected = driver(made(), limits=TokenLimits(10**6)).run(searches)
    assert driver(made(), limits=TokenLimits(10**6), workers=[made() for _ in range(4)]).run(searches) == expected
    assert {trajectory.succeeded for trajectory in expected} == {True, False}


def test_environments_step_while_the_other_half_generates() -> None:
    engine = Announcing()
    awaiting = Awaiting(engine.second, PATIENCE)
    assert len(driver(engine=engine, workers=[awaiting]).run(tasks(Sample(), 8))) == 8
    engine = Announcing()
    with pytest.raises(TimeoutError, match="nothing was generated"):
        driver(Awaiting(engine.second, 0.01), engine).run(tasks(Sample(), 8))


def test_workers_step_side_by_side() -> None:
    """Each wave of a half has three steps, and none goes on before three have begun."""
    searches = [SearchTask(0, member, Sample(), Key(member)) for member in range(6)]
    barrier = threading.Barrier(3)
    plays = driver(Walk(slip=0), Scripted(["d"]), workers=[Meeting(barrier) for _ in range(3)])
    assert [len(trajectory.turns) for trajectory in plays.run(searches)] == [6] * 6


def test_all_of_a_few_searches_are_split_between_the_halves() -> None:
    """Two searches under a concurrency of hundreds: a half of one, or nothing would overlap."""
    engine = Announcing()
    awaiting = Awaiting(engine.second, PATIENCE)
    assert len(driver(engine=engine, workers=[awaiting]).run(tasks(Beam(2, 4), 2))) == 2


def test_what_fails_in_a_worker_is_raised_and_no_thread_stays() -> None:
    with pytest.raises(ConnectionError, match="the page is gone"):
        driver(workers=[Falling(), Falling()]).run(tasks(Beam(2, 4), 40))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("environment")] == []
