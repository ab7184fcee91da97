"""docs/examples/puct.py: a strategy with data on its nodes, written as a user would."""

import importlib.util
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from commands import QUICK, in_folder, tsr
from jsonargparse import ArgumentParser

from tests.fakes import TURNS, Scripted, Walk, driver, tasks
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.rehearsal import rehearse
from tsr_lightning.search.strategies import BestOfN, Strategy
from tsr_lightning.search.tree import DriverState, Node, Snapshot
from tsr_lightning.trajectory import Origin

FILE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "puct.py"
ANSWERS = ("a", "b", "c", "c", "d", "d")  # one on, two on, back, stay


@pytest.fixture
def puct(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, which is on no import path."""
    spec = importlib.util.spec_from_file_location("puct", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "puct", module)
    spec.loader.exec_module(module)
    return module


def play(strategy: Strategy, searches: int = 40) -> tuple[float, int]:
    """The success rate from 0, which is nine steps from the goal, and the environment steps that it took."""
    runner = driver(Walk(slip=0), Scripted(ANSWERS))
    played = runner.run([SearchTask(0, member, strategy, Key(member)) for member in range(searches)])
    return sum(trajectory.succeeded for trajectory in played) / searches, runner.costs.env_steps


def nodes(root: Node) -> Iterator[Node]:
    yield root
    for child in root.data.children:
        yield from nodes(child)


def test_puct_succeeds_where_as_many_steps_of_plain_sampling_fail(puct: ModuleType) -> None:
    rehearse(puct.PUCT())
    found, steps = play(puct.PUCT(simulations=24, candidates=8))
    trajectories = math.ceil(steps / (40 * TURNS)) + 1  # of at most six turns, for each of 40 searches
    sampled, sampled_steps = play(BestOfN(trajectories))
    assert sampled_steps >= steps
    assert found > 0.75
    assert sampled < 0.25


def test_visits_values_and_priors_add_up(puct: ModuleType) -> None:
    """A node was a leaf once, unless it has ended, and every other visit went on to one of its children."""
    runner = driver(Walk(), Scripted())
    for leaf in runner.leaves(tasks(puct.PUCT(), 20)):
        tree = list(nodes(leaf.path[0]))
        expanded = [node for node in tree if node.data.children]
        assert max(node.depth for node in expanded) > 1
        for node in expanded:
            children = [child.data for child in node.data.children]
            assert node.data.visits == 1 + sum(child.visits for child in children)
            assert sum(child.prior for child in children) == pytest.approx(1)
            assert node.data.value_sum == pytest.approx(node.score + sum(child.value_sum for child in children))
        for node in set(tree) - set(expanded):
            assert node.done or node.data.visits == 0
            assert node.data.value_sum == pytest.approx(node.data.visits * node.score)


def test_the_selection_rule_by_hand(puct: ModuleType) -> None:
    parent, fresh, visited = (Node(Snapshot(None, (), 0, 0), DriverState(Key(0))) for _ in range(3))
    parent.data = puct.Statistics(visits=16)
    fresh.data = puct.Statistics(prior=0.5)
    visited.data = puct.Statistics(prior=0.25, visits=3, value_sum=1.5)
    assert puct.puct(2.0, parent, fresh) == 4.0  # 0 + 2 · 0.5 · √16 / 1
    assert puct.puct(2.0, parent, visited) == 1.0  # 1.5 / 3 + 2 · 0.25 · √16 / 4


def test_puct_searches_share_waves_and_change_no_draw(puct: ModuleType) -> None:
    """As many engine calls as the longest of 40 searches makes alone; the result is that of one search at a time."""
    searches = tasks(puct.PUCT())
    engine = Scripted()
    together = driver(engine=engine, concurrency=256).run(searches)
    calls, alone = [], []
    for task in searches:
        one = Scripted()
        alone += driver(engine=one).run([task])
        calls.append(one.calls.count("generate"))
    assert together == alone == driver(concurrency=7).run(searches)
    assert engine.calls.count("generate") == max(calls)
    assert {trajectory.origin for trajectory in together} == {Origin.SEARCHED}
    assert any(trajectory.succeeded for trajectory in together)


def test_puct_is_a_class_path(puct: ModuleType) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--plan", type=Plan)
    arguments = ["--plan=Uniform", "--plan.strategy=puct.PUCT", "--plan.strategy.simulations=3"]
    plan = parser.instantiate_classes(parser.parse_args(arguments)).plan
    assert plan.strategies == [puct.PUCT(simulations=3)]


@pytest.mark.slow
def test_puct_trains(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path)
    fast = ("--data.plan.init_args.count", "2", "--data.plan.init_args.strategy.init_args.simulations", "2")
    with in_folder(tmp_path):
        flags = ("--data.plan.init_args.strategy", "puct.PUCT", *fast, *QUICK, "--trainer.max_epochs", "1")
        cli = tsr("fit", "--config", "configs/sokoban.yaml", "--config", "configs/credit/imitate.yaml", *flags)
    assert cli.trainer.global_step > 0
