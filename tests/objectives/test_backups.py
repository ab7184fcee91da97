"""Values of candidates against a recursion that looks for every outcome anew, on random trees and by hand."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from trees import candidate_of, random_tree

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import MaxBackup, MeanBackup
from tsr_lightning.objectives.backups import found_success
from tsr_lightning.trajectory import Candidate, Ended

Place = tuple[int, int]  # of a candidate: tree and place in it
Trees = Sequence[Sequence[Candidate]]
Where = tuple[tuple[int, str, int], ...]  # depth, key and budget of a state; () is the root


def depth(trees: Trees, place: Place) -> int:
    i, j = place
    parent = trees[i][j].parent
    return 0 if parent is None else 1 + depth(trees, (i, parent))


def before(trees: Trees, place: Place) -> Where:
    """The state that a candidate was proposed in."""
    i, j = place
    parent = trees[i][j].parent
    return () if parent is None else after(trees, (i, parent))


def after(trees: Trees, place: Place) -> Where:
    i, j = place
    return ((depth(trees, place), trees[i][j].state_key, trees[i][j].remaining),)


def all_places(trees: Trees) -> list[Place]:
    return [(i, j) for i, tree in enumerate(trees) for j in range(len(tree))]


def below(trees: Trees, place: Place) -> list[Place]:
    """What was proposed in the state that a candidate led to, anywhere."""
    i, j = place
    if trees[i][j].done:
        return []
    return [other for other in all_places(trees) if before(trees, other) == after(trees, place)]


def of_response(trees: Trees, place: Place, value: Callable[[Place], float | None]) -> float | None:
    """The mean over the outcomes of an equal response in an equal state."""
    i, j = place
    known = [
        value((k, m))
        for k, m in all_places(trees)
        if before(trees, (k, m)) == before(trees, place) and trees[k][m].turn.action == trees[i][j].turn.action
    ]
    values = [each for each in known if each is not None]
    return fmean(values) if values else None


def bounded(candidate: Candidate) -> float | None:
    return None if candidate.env_score is None else min(1.0, max(0.0, candidate.score))


def best_found(trees: Trees, place: Place, discount: float, share: float) -> float:
    def success(at: Place) -> float:
        if trees[at[0]][at[1]].succeeded:
            return 1.0
        return discount * max((of_response(trees, other, success) or 0.0 for other in below(trees, at)), default=0.0)

    def score(at: Place) -> float | None:
        of_states = [of_response(trees, other, score) for other in below(trees, at)]
        known = [each for each in [bounded(trees[at[0]][at[1]]), *of_states] if each is not None]
        return max(known) if known else None

    return of_response(trees, place, success) or share * (of_response(trees, place, score) or 0.0)


def mean_return(trees: Trees, place: Place, discount: float, share: float) -> float:
    def value(at: Place) -> float:
        candidate = trees[at[0]][at[1]]
        following = below(trees, at)
        if candidate.done:
            rest = 0.0
        elif following:  # each drawn one counts once, with the mean over the outcomes of its response
            drawn = [other for other in following if trees[other[0]][other[1]].drawn]
            rest = fmean(of_response(trees, other, value) or 0.0 for other in drawn) if drawn else 0.0
        else:
            rest = share * (bounded(candidate) or 0.0)
        return candidate.turn.reward + discount * rest

    return of_response(trees, place, value) or 0.0


def any_success(trees: Trees, place: Place) -> bool:
    equal = [
        other
        for other in all_places(trees)
        if before(trees, other) == before(trees, place)
        and trees[other[0]][other[1]].turn.action == trees[place[0]][place[1]].turn.action
    ]
    return any(
        trees[i][j].succeeded or any(any_success(trees, other) for other in below(trees, (i, j))) for i, j in equal
    )


@pytest.mark.parametrize("seed", range(25))
def test_values_are_those_of_the_recursion(seed: int):
    draws = random.Random(seed)
    trees = [random_tree(draws) for _ in range(draws.choice([1, 2, 3]))]
    best, mean = MaxBackup(0.8, 0.4)(trees), MeanBackup(0.7, 0.3)(trees)
    successes = found_success(trees)
    for place in all_places(trees):
        i, j = place
        assert best[i][j] == pytest.approx(best_found(trees, place, 0.8, 0.4))
        assert mean[i][j] == pytest.approx(mean_return(trees, place, 0.7, 0.3))
        assert successes[i][j] == any_success(trees, place)


def test_the_random_trees_have_what_makes_values_hard():
    trees = [[random_tree(random.Random(seed))] for seed in range(25)]
    places = [(one, place) for one in trees for place in all_places(one)]
    states = [{before(one, place) for place in all_places(one)} for one in trees]
    pruned = [
        not one[i][j].done and after(one, (i, j)) in known
        for one, known in zip(trees, states, strict=True)
        for i, j in all_places(one)
        if not any(each.parent == j for each in one[i])
    ]
    assert sum(pruned) > 2  # equal states of which one was dropped
    assert sum(one[i][j].succeeded for one, (i, j) in places) > 5
    assert sum(not one[i][j].drawn for one, (i, j) in places) > 5


def test_a_success_is_discounted_by_the_turns_that_it_took():
    tree = [
        candidate_of("a", key="s"),
        candidate_of("b", key="t", score=0.6),
        candidate_of("a", 0, key="u", score=0.9),
        candidate_of("c", 0, key="v"),
        candidate_of("a", 3, key="w", succeeded=True),
    ]
    # Two turns later: 0.9^2. b: half of its score. Within s: c leads to the success, a to half of 0.9.
    assert MaxBackup()([tree]) == [pytest.approx([0.81, 0.3, 0.45, 0.9, 1.0])]
    assert found_success([tree]) == [[True, False, False, True, True]]


def test_a_pruned_state_has_the_value_of_the_equal_one_that_was_kept():
    tree = [candidate_of("a", key="s"), candidate_of("b", key="s"), candidate_of("a", 0, key="t", succeeded=True)]
    assert MaxBackup()([tree])[0][:2] == [0.9, 0.9]
    other_budget = [tree[0], candidate_of("b", key="s", remaining=7), tree[2]]
    assert MaxBackup()([other_budget])[0][:2] == [0.9, 0.0]
    ended = [tree[0], replace(candidate_of("b", key="s"), ended=Ended.TOKEN_LIMIT), tree[2]]
    assert MaxBackup()([ended])[0][:2] == [0.9, 0.0]  # no token was left to go on with


def test_outcomes_of_equal_responses_are_averaged():
    tree = [
        candidate_of("a", key="s", succeeded=True, reward=1.0),
        candidate_of("a", key="t", done=True, reward=-1.0),
        candidate_of("b", key="u", done=True, reward=0.5),
        candidate_of("a", key="v", done=True, reward=-3.0, drawn=False),  # the real episode's outcome of a
    ]
    assert MaxBackup()([tree]) == [pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3])]
    assert MeanBackup()([tree]) == [pytest.approx([-1.0, -1.0, 0.5, -1.0])]


def test_trees_of_one_instance_share_their_states():
    one = [candidate_of("a", key="s")]
    other = [candidate_of("b", key="s"), candidate_of("c", 0, key="t", succeeded=True, reward=1.0)]
    assert MaxBackup()([one, other]) == [[0.9], [0.9, 1.0]]
    assert MeanBackup()([one, other]) == [[1.0], [1.0, 1.0]]
    assert MaxBackup()([one]) == [[0.0]]


@pytest.mark.parametrize("backup", [MaxBackup, MeanBackup])
@pytest.mark.parametrize("name", ["discount", "score_share"])
def test_fractions_are_checked(backup: type, name: str):
    with pytest.raises(ConfigError, match=rf"{backup.__name__}\.{name} is 1\.5"):
        backup(**{name: 1.5})
