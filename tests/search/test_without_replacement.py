"""Candidates that are sampled without replacement."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from tests.fakes import Guided, Scripted, Walk, driver, tasks
from tsr_lightning.costs import Costs
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, ImitateSuccesses, TreeCredit
from tsr_lightning.rng import Key
from tsr_lightning.search.branching import SuffixRestarts
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.scorers import Critic, Scorer
from tsr_lightning.search.strategies import Beam
from tsr_lightning.search.tree import Node, Search, distinct, flat
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.trajectory import Candidate


class Constant(Scorer):
    """Leaves every choice to what orders equals."""

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [0.0 for _ in nodes]


def test_siblings_without_replacement_differ_and_the_first_is_a_sample_as_any_other() -> None:
    def siblings(beam: Beam) -> tuple[list[list[Candidate]], Costs]:
        runner = driver(keep_tree=True)
        groups = []
        for trajectory in runner.run(tasks(beam, 24)):
            for _, group in groupby(trajectory.tree, key=lambda candidate: candidate.parent):
                groups.append(list(group))
        return groups, runner.costs

    usual, _ = siblings(Beam(1, 3, Constant()))
    groups, costs = siblings(Beam(1, 3, Constant(), without_replacement=True))
    assert min(len({c.turn.response for c in group}) for group in usual) < 3
    assert all(len({c.turn.response for c in group}) == len(group) == 3 for group in groups)
    roots, usual_roots = ([group[0] for group in each if group[0].parent is None] for each in (groups, usual))
    assert [c.turn.response for c in roots] == [c.turn.response for c in usual_roots]
    assert costs.tokens_generated == sum(len(c.turn.response) for group in groups for c in group)


def test_responses_of_one_request_differ_from_those_of_earlier_ones() -> None:
    runner = driver(Walk(slip=0), Scripted(["d", "d.", "d..", "d..."]), keep_tree=True)
    for trajectory in runner.run(tasks(FirstImprovement(4), 8)):
        for _, group in groupby(trajectory.tree, key=lambda candidate: candidate.parent):
            assert len({candidate.turn.response for candidate in group}) == 4
    usual = driver(Walk(slip=0), Scripted(["d", "d.", "d..", "d..."]), keep_tree=True)
    groups = [
        [candidate.turn.response for candidate in group]
        for trajectory in usual.run(tasks(FirstImprovement(4, without_replacement=False), 8))
        for _, group in groupby(trajectory.tree, key=lambda candidate: candidate.parent)
    ]
    assert any(len(set(group)) < len(group) == 4 for group in groups)


def test_of_equals_sampled_without_replacement_the_likelier_is_kept() -> None:
    class Recording(Beam):
        def plan(self, root: Node) -> Search:
            search = super().plan(root)
            answer: Any = None
            while True:
                try:
                    request = search.send(answer)
                except StopIteration as stop:
                    return stop.value
                answer = yield request
                choices.append(flat(answer))

    choices: list[list[Node]] = []
    [leaf] = driver(Guided()).leaves([SearchTask(3, 0, Recording(1, 4, Constant(), without_replacement=True), Key(2))])
    assert len(choices) > 2
    for kept, candidates in zip(leaf.path[1:], choices, strict=True):
        same_return = [node for node in distinct(candidates) if node.episode_return == kept.episode_return]
        assert kept.logprob == max(node.logprob for node in same_return)
        assert kept.episode_return == max(node.episode_return for node in candidates)


def test_tree_credit_refuses_siblings_that_are_no_samples() -> None:
    differing = Beam(without_replacement=True)
    for strategy in (differing, SuffixRestarts(SearchFailures(differing)), FirstImprovement(without_replacement=False)):
        check_plan(GRPO(searched=ImitateSuccesses()), Uniform(strategy, 1))
        with pytest.raises(
            ConfigError, match=r"data\.plan is .*: TreeCredit needs independent .* without_replacement false"
        ):
            check_plan(GRPO(searched=TreeCredit()), Uniform(strategy, 1))
