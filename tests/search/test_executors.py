"""Worker environments give the same trajectories, and step in parallel with generation and with each other; where they
did not, these tests would run into a timeout."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from commands import IMPORT_PATH, ROOT

from tests.fakes import Guided, Scripted, Walk, driver, tasks
from tests.search.reference import FEW
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Expert, Sample, Strategy

TIMEOUT = 20.0  # seconds


class Exclusive(Guided):
    """Fails where two threads step it at once."""

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.get_state()
        time.sleep(0)  # lets other threads run
        if self.get_state() != before:
            raise AssertionError("two threads step one environment")
        return super().step(action)


class WaitsForEvent(Walk):
    """Steps only after an event."""

    def __init__(self, event: threading.Event, timeout: float) -> None:
        super().__init__()
        self.event = event
        self.timeout = timeout

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self.event.wait(self.timeout):
            raise TimeoutError("no second wave was generated meanwhile")
        return super().step(action)


class SignalsSecondWave(Scripted):
    """Sets an event at its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.second = threading.Event()

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        if self.calls:
            self.second.set()
        return super().generate(prompts, temperature)


class WaitsForOthers(Walk):
    """Steps only once all parties of a barrier do."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__(slip=0)
        self.barrier = barrier

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.barrier.wait(TIMEOUT)
        return super().step(action)


class Failing(Walk):
    """Raises at its third step."""

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.turn == 2:
            raise ConnectionError("the page is gone")
        return super().step(action)


@pytest.mark.parametrize("strategy", FEW, ids=repr)
@pytest.mark.parametrize("concurrency", [1, 7, 256])
def test_workers_change_no_trajectory(strategy: Strategy, concurrency: int) -> None:
    searches = tasks(strategy, 16)
    serial = driver(Guided())
    expected = serial.run(searches)
    for count in (1, 3):
        threaded = driver(Guided(), concurrency=concurrency, workers=[Exclusive() for _ in range(count)])
        assert threaded.run(searches) == expected
        assert threaded.costs.env_steps == serial.costs.env_steps
        assert threaded.costs.tokens_generated == serial.costs.tokens_generated


@pytest.mark.parametrize("name", ["Sokoban", "FrozenLake", "WebShop"])
def test_shipped_environments_share_no_state_between_threads(name: str) -> None:
    """Neither do their solvers and caches."""

    def make() -> Branchable:
        return make_env(f"tsr/{name}-v0")

    searches = tasks(Expert(0.3), 24)
    expected = driver(make(), limits=TokenLimits(10**6)).run(searches)
    assert driver(make(), limits=TokenLimits(10**6), workers=[make() for _ in range(4)]).run(searches) == expected
    assert {trajectory.succeeded for trajectory in expected} == {True, False}


def test_environments_step_while_the_other_cohort_generates() -> None:
    engine = SignalsSecondWave()
    env = WaitsForEvent(engine.second, TIMEOUT)
    assert len(driver(engine=engine, workers=[env]).run(tasks(Sample(), 8))) == 8
    engine = SignalsSecondWave()
    with pytest.raises(TimeoutError, match="no second wave"):
        driver(WaitsForEvent(engine.second, 0.01), engine).run(tasks(Sample(), 8))


class NeverEnds(Walk):
    """Holds up its first step for ever."""

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        threading.Event().wait()
        raise AssertionError


INTERRUPTED = """
import os, signal, threading
from tests.fakes import driver, tasks
from tests.search.test_executors import NeverEnds
from tsr_lightning.search.strategies import Sample
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
driver(NeverEnds(), workers=[NeverEnds(), NeverEnds()]).run(tasks(Sample(), 4))
"""


def test_a_step_that_never_ends_does_not_hold_up_the_end_of_the_program() -> None:
    env = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert ended.stderr.endswith("KeyboardInterrupt\n")


def test_workers_step_in_parallel() -> None:
    """Each wave of a cohort has three steps, none of which ends before all three have begun."""
    searches = [SearchTask(0, member, Sample(), Key(member)) for member in range(6)]
    barrier = threading.Barrier(3)
    threaded = driver(Walk(slip=0), Scripted(["d"]), workers=[WaitsForOthers(barrier) for _ in range(3)])
    assert [len(trajectory.turns) for trajectory in threaded.run(searches)] == [6] * 6


def test_a_few_searches_are_split_between_the_cohorts() -> None:
    """Two searches under a concurrency of hundreds: one per cohort, or nothing would overlap."""
    engine = SignalsSecondWave()
    env = WaitsForEvent(engine.second, TIMEOUT)
    assert len(driver(engine=engine, workers=[env]).run(tasks(Beam(2, 4), 2))) == 2


def test_an_error_in_a_worker_is_raised_and_all_threads_end() -> None:
    with pytest.raises(ConnectionError, match="the page is gone"):
        driver(workers=[Failing(), Failing()]).run(tasks(Beam(2, 4), 40))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("environment")] == []
