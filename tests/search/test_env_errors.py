"""Mistakes in an environment's program end the run with their line; what it depends on is tried again and counted."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import driver, tasks
from tests.spoiled import Spoiled
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.process import ProcessEnv, process_env
from tsr_lightning.errors import EnvFault, RunError
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Sample, Strategy

RAISING = [
    ("step raises", "step", r"KeyError: 'typo' at tests/spoiled\.py:\d+"),
    ("step exits", "step", r"SystemExit: 0 at tests/spoiled\.py:\d+"),
    ("score raises", "step", r"ZeroDivisionError: division by zero at tests/spoiled\.py:\d+"),
    ("reset raises", "reset", r"IndexError: list index out of range at tests/spoiled\.py:\d+"),
]
# Of searches that read the score: mistake, method, and what is wrong
INVALID = [
    ("score is nan", "step", r"score\(\) is nan; give a finite number"),
    ("reward is infinite", "step", r"the reward is inf; give a finite number"),
    ("reward is None", "step", r"the reward is None; give a finite number"),
    ("reward is an array", "step", r"the reward is array\(\[1., 1.\]\); give a finite number"),
    ("success is None", "step", r"info\['success'\] is None; give True or False"),
    ("success is missing", "step", r"info has no 'success', only 'action_is_valid', 'action_is_effective'"),
    ("parts", "step", r"the content of the user message is \[\{.*\}\]; give one string"),
    ("another role", "step", r"a message has the role 'function'; give one of system, user, assistant, tool, tools"),
    ("failures score 1", "step", r"score\(\) is 1 in an episode that ended without success; keep it below"),
    ("observation is None", "step", r"an observation is a text or a sequence .*, and this is None"),
    ("state key is a list", "reset", r"state_key\(\) is \[\d\]; make it of numbers, strings and tuples alone"),
]


def search(env: Any, strategy: Strategy = Beam(), retries: int = 3, **settings: Any) -> Any:  # noqa: B008  (frozen)
    runner = driver(env, retry=Retrying(retries), limits=TokenLimits(10**6), **settings)
    return runner.survivors(tasks(strategy, 4)), runner.costs


@pytest.fixture
def in_process() -> Iterator[Any]:
    made: list[ProcessEnv] = []

    def make(mistake: str) -> ProcessEnv:
        made.append(process_env("tests.spoiled:Spoiled-v0", {"mistake": mistake}))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize(("mistake", "method", "error"), RAISING)
def test_a_mistake_in_the_program_ends_the_run_with_its_line(mistake: str, method: str, error: str) -> None:
    """At once, whatever share of failures is tolerated, and with the lines that led there."""
    with pytest.raises(RunError) as ended:
        search(make_env("tests.spoiled:Spoiled-v0", mistake=mistake))
    response = r", response '[a-z.]+'" if method == "step" else ""
    pattern = rf"{method} of \S*Spoiled-v0 \(instance 0{response}\) raised {error}; fix the environment; only EnvFault"
    assert re.match(pattern, str(ended.value)), str(ended.value)
    assert "spoiled.py" in ended.value.details
    assert "boundary.py" not in ended.value.details


@pytest.mark.parametrize(("mistake", "method", "error"), RAISING)
def test_in_a_process_too(mistake: str, method: str, error: str, in_process: Any) -> None:
    pattern = rf"{method} of tests\.spoiled:Spoiled-v0 \(instance 0.*\) raised {error}; fix the environment"
    with pytest.raises(RunError, match=pattern) as ended:
        search(in_process(mistake))
    assert "spoiled.py" in ended.value.details


def test_in_threads_too() -> None:
    workers = [Spoiled("step raises"), Spoiled("step raises")]
    with pytest.raises(RunError, match=r"step of Spoiled \(instance 0, response .*KeyError: 'typo' at tests/spoiled"):
        search(Spoiled("step raises"), workers=workers)


@pytest.mark.parametrize(("mistake", "method", "problem"), INVALID)
def test_what_breaks_the_contract_ends_the_run(mistake: str, method: str, problem: str) -> None:
    with pytest.raises(RunError, match=rf"{method} of Spoiled \(instance 0.*\) is wrong: {problem}"):
        search(Spoiled(mistake))


def test_the_first_observation_is_looked_at_too() -> None:
    with pytest.raises(RunError, match=r"reset of Spoiled \(instance 0\) is wrong: the content of the user message is"):
        search(Spoiled("first parts"))


@pytest.mark.parametrize("mistake", ["numpy", "numpy score"])
def test_scalars_of_numpy_change_nothing(mistake: str) -> None:
    found, _ = search(Spoiled(mistake))
    expected, _ = search(Spoiled())
    assert [one.turns for one in found] == [one.turns for one in expected]
    assert [(one.succeeded, one.truncated) for one in found] == [(one.succeeded, one.truncated) for one in expected]
    assert {type(flag) for one in found for flag in (one.succeeded, one.truncated, one.turns[0].valid)} == {bool}


@pytest.mark.parametrize("where", ["here", "process"])
def test_a_fault_that_the_environment_names_is_tried_again(where: str, in_process: Any) -> None:
    env = Spoiled("step faults") if where == "here" else in_process("step faults")
    found, costs = search(env, Sample(), retries=1)
    assert found == [None] * 4
    assert (costs.env_errors, costs.trajectories_lost) == (8, 4)


def test_what_a_play_without_retries_raises_is_the_environments_own() -> None:
    with pytest.raises(EnvFault, match="no page"):
        driver(Spoiled("step faults"), limits=TokenLimits(10**6)).run(tasks(Sample(), 1))
