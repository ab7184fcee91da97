"""A process score that a run learns: what it reads, what it is taught, and that a checkpoint goes on with it."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.commands import QUICK, TINY, tsr
from tests.fakes import Guided, driver, tasks
from tsr_lightning.errors import ConfigError
from tsr_lightning.search import AdaptiveTree, Beam, Expert, ProcessScore, Sample, SearchFailures
from tsr_lightning.search.plan import Mixed, PlanEntry, Uniform
from tsr_lightning.search.process_score import ProcessModel, examples_of, fitted, places
from tsr_lightning.search.scorers import EnvironmentScore, WeightedSum
from tsr_lightning.trajectory import Candidate, Group, Message, Trajectory


def shown(text: str) -> tuple[Message, ...]:
    return (Message("system", "instructions"), Message("user", text))


def groups_of(trajectories: Sequence[Trajectory]) -> list[Group]:
    return [Group(each.instance, (each,)) for each in trajectories]


def test_a_state_is_its_words_its_lines_and_pairs_of_lines():
    """2^40 buckets hold all apart: one of every state, the words P, 4, 2 and O, the lines P 4 2 and O 4, and their
    pair. Instructions say nothing, nor how often a word stands there."""
    buckets = 2**40
    assert len(places(shown("P 4 2\nO 4\n"), buckets)) == 1 + 4 + 2 + 1
    assert set(places(shown(""), buckets)) < set(places(shown("P"), buckets))
    both, one = (set(places(shown(text), buckets)) for text in ("P 4 2\nO 4", "P 4 2"))
    assert one < both
    assert len(places(shown("x\n" * 999 + "y"), 4)) <= 4


def test_learning_is_logistic_regression_example_by_example():
    """Against a loop over dictionaries; the first step by hand: error 1 - 1/2, of which each of 4 features gets 1/4."""
    examples = [(places(shown(text), 64), target) for text, target in (("a b", 1.0), ("a c", 0.0), ("b", 0.75)) * 5]
    weights = dict.fromkeys(range(64), 0.0)
    for own, target in examples:
        error = target - 1 / (1 + math.exp(-sum(weights[int(i)] for i in own)))
        for i in own:
            weights[int(i)] += 0.8 * error / len(own)
    zero = ProcessModel(ProcessScore(buckets=64))
    start = zero._weights.before(0)
    assert fitted(start, examples, 0.8) == pytest.approx(list(weights.values()))
    first = fitted(start, examples[:1], 0.8)
    assert first[examples[0][0]] == pytest.approx(0.8 * 0.5 / 4)
    assert first.sum() == pytest.approx(0.8 * 0.5)
    assert not start.any()


def ends_below(tree: Sequence[Candidate], place: int | None) -> list[bool]:
    found: list[bool] = []
    for i, each in enumerate(tree):
        if each.parent == place:
            found += [each.succeeded] if each.done else ends_below(tree, i)
    return found


def test_targets_are_the_successes_below_each_state_by_brute_force():
    trees = driver(keep_tree=True).run(tasks(AdaptiveTree(scorer=EnvironmentScore()), 16))
    mixed = 0
    for each in trees:
        places_of_states = [None, *(i for i, node in enumerate(each.tree) if not node.done)]
        expected = sorted(fmean(ends) for place in places_of_states if (ends := ends_below(each.tree, place)))
        assert sorted(target for _, target in examples_of(each)) == pytest.approx(expected)
        mixed += any(0 < target < 1 for target in expected)
    assert mixed > 4
    [plain] = driver().run(tasks(Sample(), 1))
    assert list(examples_of(plain)) == [(turn.messages, float(plain.succeeded)) for turn in plain.turns]


def test_it_finds_out_which_prefixes_succeed():
    """After 400 plain samples of other draws a beam by it succeeds more often than by a score that knows nothing."""
    learned = ProcessScore()
    learned.model.learn(0, groups_of(driver().run(tasks(Sample(), 400, run=3))), 0)
    rates = []
    for epoch in (0, 1):
        learned.model.begin(epoch)
        rates.append(fmean(each.succeeded for each in driver().run(tasks(Beam(1, 4, learned), 100))))
    assert rates[1] > rates[0] + 0.15


def test_demonstrations_say_nothing_of_the_policys_chances():
    """An oracle succeeds from states in which the policy rarely would."""
    shown, played = (groups_of(driver(Guided()).run(tasks(strategy, 20))) for strategy in (Expert(), Sample()))
    both, alone = ProcessScore().model, ProcessScore().model
    both.learn(0, [*shown, *played], 0)
    alone.learn(0, played, 0)
    assert both.state_dict(1) == alone.state_dict(1)


def test_it_goes_on_where_the_checkpoint_left_it():
    """Rollouts may be two ahead of the epochs that a checkpoint counts, and are collected again after it."""
    rollouts = [groups_of(driver().run(tasks(Sample(), 20, run=epoch))) for epoch in range(4)]
    whole, resumed = ProcessScore().model, ProcessScore().model
    for epoch, groups in enumerate(rollouts):
        whole.learn(epoch, groups, max(0, epoch - 2))
    states = [whole.state_dict(epochs) for epochs in range(2, 5)]
    assert len({str(state) for state in states}) == 3
    resumed.load_state_dict(states[0])
    for epoch in (2, 3):
        resumed.begin(epoch)
        resumed.learn(epoch, rollouts[epoch], epoch)
    assert resumed.state_dict(4) == states[2]
    whole.begin(4)
    resumed.begin(4)
    assert resumed.success(shown("9,3;")) == whole.success(shown("9,3;")) != 0.5


def test_a_plan_names_each_learner_once():
    """Two scorers of equal settings learn apart; one scorer in two strategies learns once."""
    shared, own = ProcessScore(), ProcessScore()
    wrapped = SearchFailures(Beam(1, 2, WeightedSum([EnvironmentScore(), own], [1.0, 1.0])))
    plan = Mixed([PlanEntry(AdaptiveTree(scorer=shared), 1), PlanEntry(Beam(1, 2, shared), 1), PlanEntry(wrapped, 1)])
    assert plan.learners == [shared.model, own.model]
    assert Uniform(Beam()).learners == []


@pytest.mark.parametrize("arguments", [{"learning_rate": 0.0}, {"learning_rate": 9}, {"buckets": 1}, {"passes": 0}])
def test_an_invalid_argument_is_refused(arguments: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"ProcessScore\.{next(iter(arguments))} is "):
        ProcessScore(**arguments)


def test_a_resumed_run_has_to_have_as_many_buckets():
    with pytest.raises(ConfigError, match=re.escape("ProcessScore.buckets is 64: the checkpoint's run had 32: resume")):
        ProcessScore(buckets=64).model.load_state_dict(ProcessScore(buckets=32).model.state_dict(0))


@pytest.mark.slow
def test_a_resumed_run_scores_as_the_straight_one(empty_folder: Path):
    def run(epochs: int, *flags: object) -> Any:
        keep = '[{"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch}", "every_n_epochs": 1, '
        return tsr(
            *("fit", "--config", "sokoban.yaml", "--config", "search/adaptive_tree.yaml"),
            *("--config", "credit/tree.yaml", *QUICK, "--trainer.max_epochs", epochs, "--model.policy.model", TINY),
            *("--trainer.logger", "false", "--trainer.callbacks", keep + '"save_top_k": -1}}]', *flags),
        )

    straight = run(2)
    [first] = empty_folder.rglob("epoch=0.ckpt")
    resumed = run(2, "--ckpt_path", first)
    learned = [one.datamodule.plan.learners[0].state_dict(2) for one in (straight, resumed)]
    assert learned[0] == learned[1]
    assert len(learned[0]["weights"]) > 100
    with pytest.raises(ConfigError, match=r"data\.plan has 0 scorers that learn, and the checkpoint's run had 1: "):
        run(3, "--ckpt_path", first, "--config", "search/sample.yaml", "--config", "credit/imitate.yaml")
