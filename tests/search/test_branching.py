"""Strategies that branch for information: each draws what its brute-force reference draws, and not a token more."""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes import Guided, Scripted, Varied, Walk, driver, tasks
from tests.search.branching_reference import BRANCHING, ONE_OF_EACH, BranchingReference
from tests.search.recorded_search import Recorded
from tests.search.reference import STRATEGIES, Point, value
from tsr_lightning.engines.base import Response
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.search import (
    AdaptiveTree,
    Beam,
    ContrastBeam,
    EntropyExpansion,
    EntropyRise,
    Expert,
    Sample,
    SearchFailures,
    Strategy,
    SuffixRestarts,
    Vine,
)
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.tree import Node
from tsr_lightning.trajectory import Ended, Origin


def recorded(runner: Driver, searches: Sequence[SearchTask]) -> list[tuple[Node, list[Node]]]:
    """The leaf of each search and all its candidates."""
    watched = [SearchTask(t.instance, t.member, Recorded(t.strategy), t.key) for t in searches]
    return [
        (leaf, task.strategy.candidates)
        for leaf, task in zip(runner.leaves(watched), watched, strict=True)
        if isinstance(task.strategy, Recorded)
    ]


def seen(node: Node, scorer: Scorer | None) -> dict[str, Any]:
    """What can be compared of a node."""
    return {
        "key": node.driver.key,
        "turns": node.turns,
        "score": node.score if scorer else None,
        "return": node.episode_return,
        "ended": (node.done, node.succeeded, node.snapshot.ended),
    }


def expected(point: Point, scorer: Scorer | None) -> dict[str, Any]:
    return {
        "key": point.key,
        "turns": point.turns,
        "score": value(scorer, point) if scorer else None,
        "return": point.episode_return,
        "ended": (point.done, point.succeeded, point.ended),
    }


def by_key(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(nodes, key=lambda node: node["key"].value)


def assert_as_the_reference(strategy: Strategy, limits: TokenLimits, max_response_tokens: int) -> list[Node]:
    """The leaves and every candidate are those of the reference, and so are the tokens and steps that they cost."""
    searches, scorer = tasks(strategy, 16), strategy.traits.scored_by
    runner = driver(Guided(), Varied(), concurrency=7, limits=limits, max_response_tokens=max_response_tokens)
    played, drawn = recorded(runner, searches), 0
    for task, (leaf, candidates) in zip(searches, played, strict=True):
        reference = BranchingReference(task, limits, max_response_tokens)
        assert leaf.turns == reference.end.turns
        assert (leaf.succeeded, leaf.episode_return) == (reference.end.succeeded, reference.end.episode_return)
        assert by_key([seen(node, scorer) for node in candidates]) == by_key(
            [expected(point, scorer) for point in reference.points]
        )
        drawn += sum(len(point.turn.response) for point in reference.points if point.turn is not None)
    assert runner.costs.tokens_generated == drawn
    return [leaf for leaf, _ in played]


@pytest.mark.parametrize("strategy", BRANCHING, ids=repr)
def test_a_search_draws_what_the_reference_draws_and_no_more(strategy: Strategy) -> None:
    leaves = assert_as_the_reference(strategy, TokenLimits(1000), 64)
    assert len({(leaf.succeeded, leaf.episode_return) for leaf in leaves}) > 2  # or any two strategies would agree


@pytest.mark.parametrize("limits", [TokenLimits(26), TokenLimits(24, episode=3)], ids=str)
@pytest.mark.parametrize("strategy", ONE_OF_EACH, ids=repr)
def test_token_limits_cut_where_the_reference_cuts(strategy: Strategy, limits: TokenLimits) -> None:
    leaves = assert_as_the_reference(strategy, limits, 2)
    assert any(leaf.snapshot.ended is Ended.TOKEN_LIMIT for leaf in leaves)


@pytest.mark.parametrize("strategy", ONE_OF_EACH, ids=repr)
def test_concurrency_order_and_workers_change_nothing(strategy: Strategy) -> None:
    searches = tasks(strategy, 16)
    alone = driver(Guided(), concurrency=1)
    expected = alone.run(searches)
    order = random.Random(1).sample(range(len(searches)), len(searches))
    for concurrency, workers in ((7, 0), (256, 0), (7, 3)):
        others = driver(Guided(), concurrency=concurrency, workers=[Guided() for _ in range(workers)])
        assert others.run([searches[i] for i in order]) == [expected[i] for i in order]
        assert others.costs.tokens_generated == alone.costs.tokens_generated
        assert others.costs.env_steps == alone.costs.env_steps


@pytest.mark.parametrize("strategy", [*STRATEGIES[::5], *BRANCHING], ids=repr)
def test_branches_says_whether_some_state_gets_several_candidates(strategy: Strategy) -> None:
    counts = [
        len({id(node) for node in candidates}) - len({id(node.parent) for node in candidates})
        for _, candidates in recorded(driver(Guided()), tasks(strategy, 8))
    ]
    assert strategy.traits.branches == any(counts)


@pytest.mark.parametrize(
    ("strategy", "origin"),
    [
        (Vine(), Origin.SAMPLED),
        (ContrastBeam(), Origin.SEARCHED),
        (EntropyExpansion(), Origin.SEARCHED),
        (EntropyRise(), Origin.SEARCHED),
        (AdaptiveTree(scorer=EnvironmentScore()), Origin.SEARCHED),
        (SearchFailures(Sample()), Origin.SEARCHED),  # the better of two samples
        (SuffixRestarts(), Origin.SEARCHED),
        (SuffixRestarts(Sample()), Origin.SAMPLED),
    ],
    ids=repr,
)
def test_trajectories_have_the_origin_of_their_strategy(strategy: Strategy, origin: Origin) -> None:
    assert {trajectory.origin for trajectory in driver(Guided()).run(tasks(strategy, 8))} == {origin}


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 3), (1, 4, 9)])
def test_entropy_expansion_has_its_budget_of_trajectories_to_the_last_one(sizes: tuple[int, int, int]) -> None:
    samples, rounds, points = sizes
    for leaf, candidates in recorded(driver(Guided(), Varied()), tasks(EntropyExpansion(*sizes))):
        ends = [node for node in candidates if node.done]
        assert len(ends) == samples + rounds * points
        assert leaf.episode_return == max(node.episode_return for node in ends)


@pytest.mark.parametrize(("penalty", "children"), [(0.0, [1, 1, 6]), (1.0, [2, 3, 5])])
def test_entropy_expansion_branches_where_the_policy_is_unsure(penalty: float, children: list[int]) -> None:
    """-log pi a token is 2 in the third state and 0.1 in the five others. A penalty of 1 ranks it 2 - 1, then 2 - 2,
    then 2 - 3, below the 0.1 - 1 of the others, which get the five trajectories that are left."""
    strategy = EntropyExpansion(1, 1, 7 if penalty else 5, penalty)
    [(_, candidates)] = recorded(driver(Walk(slip=0), UnsureOnce()), [SearchTask(0, 0, strategy, Key(1))])
    assert [sum(node.depth == depth for node in candidates) for depth in (1, 2, 3)] == children


@pytest.mark.parametrize("strategy", [EntropyRise(1, 5), EntropyRise(3, 8, 2), EntropyRise(2, 9, threshold=9.0)])
def test_entropy_rise_has_its_total_of_trajectories_to_the_last_one(strategy: EntropyRise) -> None:
    for leaf, candidates in recorded(driver(Guided(), Varied()), tasks(strategy)):
        ends = [node for node in candidates if node.done]
        assert len(ends) == strategy.total
        assert leaf.episode_return == max(node.episode_return for node in ends)


@pytest.mark.parametrize(("threshold", "children"), [(0.87, [1, 1, 4]), (0.89, [4, 4, 4])])
def test_entropy_rise_forks_where_the_policy_became_less_sure(threshold: float, children: list[int]) -> None:
    """-log pi a token is 2 in the third state and 0.1 before it: P = 0.5 + 0.2 (2 - 0.1) = 0.88 there, 0.5 elsewhere.
    Where nothing forks, the three others begin at the root."""
    strategy = EntropyRise(1, 4, branches=3, threshold=threshold)
    [(_, candidates)] = recorded(driver(Walk(slip=0), UnsureOnce()), [SearchTask(0, 0, strategy, Key(1))])
    assert [sum(node.depth == depth for node in candidates) for depth in (1, 2, 3)] == children


def test_an_adaptive_tree_gives_up_the_worst_and_branches_in_the_best() -> None:
    """On the places 1, 2, -1, 0 the scores are 1/9, 2/9, 0 and 0, and their median is 1/18: with a margin of 1/20 those
    of 0 are given up. The best of the two others gets three responses, and the other one."""
    strategy = AdaptiveTree(4, 1, 1, 3, 1 / 20, scorer=EnvironmentScore())
    [(_, candidates)] = recorded(driver(Walk(slip=0), Every("abcd")), [SearchTask(0, 0, strategy, Key(1))])
    first = [node for node in candidates if node.depth == 1]
    assert [node.snapshot.state_key for node in first] == [1, 2, -1, 0]
    assert [sum(other.parent is node for other in candidates) for node in first] == [1, 3, 0, 0]


def test_an_adaptive_tree_gives_up_what_repeats_itself_but_for_the_best() -> None:
    """All say "d" in every turn: after two of them three of four are given up."""
    strategy = AdaptiveTree(4, 1, 1, 2, repeats=2, scorer=EnvironmentScore())
    [(_, candidates)] = recorded(driver(Walk(slip=0), Scripted(["d"])), [SearchTask(0, 0, strategy, Key(1))])
    assert [sum(node.depth == depth for node in candidates) for depth in (1, 2, 3, 4)] == [4, 5, 2, 2]


def test_a_vine_returns_the_plain_sample() -> None:
    vine, plain = (driver().run(tasks(strategy)) for strategy in (Vine(), Sample()))
    assert [trajectory.turns for trajectory in vine] == [trajectory.turns for trajectory in plain]


def test_states_of_a_vine_branch_with_equal_probability_whatever_came_of_them() -> None:
    """About 0.3 of the states at each depth, of successes as of failures; none is chosen for its outcome."""
    branched: dict[tuple[int, bool], list[bool]] = {}
    for leaf, candidates in recorded(driver(), tasks(Vine(2, 0.3), 800)):
        parents = [id(node.parent) for node in candidates]
        for state in leaf.path[:-1]:
            branched.setdefault((min(state.depth, 3), leaf.succeeded), []).append(parents.count(id(state)) > 1)
    for chosen in branched.values():
        assert len(chosen) > 100
        assert sum(chosen) / len(chosen) == pytest.approx(0.3, abs=4 * (0.21 / len(chosen)) ** 0.5)


def test_all_candidates_of_a_vine_are_played_to_their_ends() -> None:
    """So that the mean of what follows them is unbiased."""
    for _, candidates in recorded(driver(), tasks(Vine(3, 0.5, 2))):
        parents = {id(node.parent) for node in candidates}
        assert all(node.done or id(node) in parents for node in candidates)


def test_a_contrast_beam_without_contrast_and_rollouts_is_a_beam() -> None:
    for commit in ("keep", "resample"):
        contrast, beam = driver(), driver()
        searches = tasks(ContrastBeam(2, 4, 0, 0, commit=commit)), tasks(Beam(2, 4, commit=commit))
        played = contrast.run(searches[0]), beam.run(searches[1])
        assert [t.turns for t in played[0]] == [t.turns for t in played[1]]
        assert contrast.costs.tokens_generated == beam.costs.tokens_generated


def test_a_contrast_beam_keeps_the_worst_and_plays_others_out() -> None:
    """Of five candidates on five places the best, the worst and one that was drawn go on, this one without branches."""
    [(_, candidates)] = recorded(driver(Walk(slip=0), Every("abcd")), [SearchTask(0, 0, ContrastBeam(1, 8), Key(1))])
    first = [node for node in candidates if node.depth == 1]
    by_place = {node.snapshot.state_key: node for node in first}
    assert sorted(by_place) == [-1, 0, 1, 2]
    families = [sum(other.parent is node for other in candidates) for node in first]
    followed = {node.snapshot.state_key: n for node, n in zip(first, families, strict=True) if n}
    assert followed.pop(2) == followed.pop(-1) == 8
    assert list(followed.values()) == [1]
    assert set(followed) < {0, 1}


def test_rollouts_go_on_after_the_first_success() -> None:
    """A success of the best ends the search and not the measurement of the others."""
    searches = [SearchTask(3, member, ContrastBeam(2, 4, 1, 2), Key(member)) for member in range(20)]
    for leaf, candidates in recorded(driver(Walk(slip=0), Scripted(["a", "b"])), searches):
        assert leaf.succeeded
        parents = [id(node.parent) for node in candidates]
        losers = [node for node in candidates if not node.done and node.depth == leaf.depth]
        distinct = {node.snapshot.state_key for node in losers}
        assert len([node for node in losers if id(node) in parents]) == min(2, len(distinct))


def test_no_search_follows_a_plain_success() -> None:
    for (_, plain), (leaf, candidates) in zip(
        recorded(driver(), tasks(Sample())), recorded(driver(), tasks(SearchFailures(Beam(2, 4)))), strict=True
    ):
        succeeded = plain[-1].succeeded
        assert [node.turn for node in candidates[: len(plain)]] == [node.turn for node in plain]
        assert (len(candidates) == len(plain)) == succeeded
        assert (leaf is candidates[len(plain) - 1]) == succeeded


def test_restarts_step_back_until_all_fail() -> None:
    """A policy that goes two on nearly always succeeds from everywhere on a path; one that mostly stays, nowhere."""
    sure, unsure = (
        recorded(driver(Walk(slip=0), Scripted(answers)), [SearchTask(3, 0, SuffixRestarts(Beam(1, 60), 9, 3), Key(1))])
        for answers in (["b"], [*"dddddddddddddddddddddddddddddb"])
    )
    for [(leaf, candidates)], points in ((sure, 3), (unsure, 1)):
        assert leaf.succeeded
        restarted = [state for state in leaf.path[:-1] if sum(node.parent is state for node in candidates) == 63]
        assert restarted == leaf.path[-1 - points : -1]


def test_restarts_leave_the_trajectory_as_it_is() -> None:
    """So that without tree credit they teach what the search alone does, to the bit."""
    for search in (Beam(2, 4), Beam(1, 2, commit="resample"), Sample()):
        restarted, alone = (driver().run(tasks(strategy)) for strategy in (SuffixRestarts(search), search))
        assert [trajectory.turns for trajectory in restarted] == [trajectory.turns for trajectory in alone]


class UnsureOnce(Scripted):
    """Says "d" everywhere, and is unsure of it in the state with four turns left."""

    def respond(self, ids: Sequence[int], key: Key, room: int) -> Response:
        is_unsure = tuple(ids[-4:]) == tuple(map(ord, "0,4;"))
        return Response((ord("d"),), (-2.0 if is_unsure else -0.1,), True)


class Every(Scripted):
    """An engine that answers each prompt with all of some letters in turn."""

    def __init__(self, letters: str) -> None:
        super().__init__()
        self.letters = letters

    def generate(self, prompts: Any, temperature: float) -> Any:
        groups = super().generate(prompts, temperature)
        return [
            [type(r)((ord(self.letters[i % len(self.letters)]),), (-1.0,), True) for i, r in enumerate(group)]
            for group in groups
        ]


# -- arguments ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "Vine.candidates is 1: give 2 or more; for 1 use Sample": lambda: Vine(1),
    "Vine.share is 0": lambda: Vine(share=0),
    "Vine.share is nan": lambda: Vine(share=float("nan")),
    "Vine.rollouts is 0": lambda: Vine(rollouts=0),
    "ContrastBeam.width is 0": lambda: ContrastBeam(0),
    "ContrastBeam.contrast is -1": lambda: ContrastBeam(contrast=-1),
    "ContrastBeam.rollouts is -1": lambda: ContrastBeam(rollouts=-1),
    "ContrastBeam.candidates is 4: give 5 or more": lambda: ContrastBeam(3, 4, 2),
    "ContrastBeam.candidates is 1: give 2 or more": lambda: ContrastBeam(1, 1, 0),
    "EntropyExpansion.samples is 0": lambda: EntropyExpansion(0),
    "EntropyExpansion.rounds is 0": lambda: EntropyExpansion(rounds=0),
    "EntropyExpansion.points is 0": lambda: EntropyExpansion(points=0),
    "EntropyExpansion.penalty is -1": lambda: EntropyExpansion(penalty=-1),
    "EntropyRise.samples is 0": lambda: EntropyRise(0),
    "EntropyRise.total is 4: give more than the 4 samples": lambda: EntropyRise(total=4),
    "EntropyRise.branches is 0": lambda: EntropyRise(branches=0),
    "EntropyRise.tokens is 0": lambda: EntropyRise(tokens=0),
    "EntropyRise.beta is nan": lambda: EntropyRise(beta=float("nan")),
    "AdaptiveTree.samples is 0": lambda: AdaptiveTree(0),
    "AdaptiveTree.every is 0": lambda: AdaptiveTree(every=0),
    "AdaptiveTree.expanded is 0": lambda: AdaptiveTree(expanded=0),
    "AdaptiveTree.children is 1": lambda: AdaptiveTree(children=1),
    "AdaptiveTree.margin is nan": lambda: AdaptiveTree(margin=float("nan")),
    "AdaptiveTree.repeats is 1": lambda: AdaptiveTree(repeats=1),
    "SearchFailures.samples is 0": lambda: SearchFailures(samples=0),
    "SearchFailures.strategy is 'Expert': its responses are demonstrated": lambda: SearchFailures(Expert()),
    "SuffixRestarts.strategy is 'Expert': a demonstration": lambda: SuffixRestarts(Expert()),
    "SuffixRestarts.points is 0": lambda: SuffixRestarts(points=0),
    "SuffixRestarts.rollouts is 1": lambda: SuffixRestarts(rollouts=1),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_an_invalid_argument_is_refused_by_its_key(sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        REFUSED[sentence]()
