"""Tree credit: which responses are compared with which, their weights, and their credit."""

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from ragged import trajectory_of, zero_estimates
from trees import candidate_of, random_tree, searched

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    DAPO,
    GRPO,
    PPO,
    RLOO,
    Credit,
    GiGPO,
    ImitateSuccesses,
    K1Reward,
    MaxBackup,
    MaxRL,
    MeanBackup,
    Objective,
    ReturnAtEnd,
    SearchedCredit,
    Supervised,
    TokenGAE,
    TreeCredit,
)
from tsr_lightning.objectives.signal import Compared, has_signal
from tsr_lightning.trajectory import Candidate, Comparison, Ended, Group, Origin, Trajectory

Tree = tuple[Candidate, ...]
SEEDS = range(12)


def trees_of(seed: int) -> list[Tree]:
    draws = random.Random(seed)
    return [random_tree(draws) for _ in range(draws.choice([1, 2, 3]))]


def group_of(*trees: Tree, others: tuple[Trajectory, ...] = ()) -> Group:
    return Group(7, (*others, *(searched(tree) for tree in trees)), env=1)


def credit_of(objective: Objective, group: Group) -> list[tuple[Group | Comparison, list[Credit]]]:
    compared = objective.comparisons(group)
    credits = objective.credit(compared, [[zero_estimates(member) for member in each.members] for each in compared])
    return list(zip(compared, credits, strict=True))


def states_of(objective: Objective, group: Group) -> list[Comparison]:
    """The comparisons of a group of searches alone."""
    return [each for each in objective.comparisons(group) if isinstance(each, Comparison)]


def values_of(state: Comparison) -> list[float]:
    return [response.value for response in state.members]


def expanded(trees: list[Tree]) -> dict[object, list[tuple[Candidate, object]]]:
    """The drawn responses by state and context, each with its node, where some node has two or more."""
    found: dict[object, list[tuple[Candidate, object]]] = {}
    for i, tree in enumerate(trees):
        for candidate in tree:
            if candidate.drawn:
                depth, above = 0, candidate.parent
                while above is not None:
                    depth, above = depth + 1, tree[above].parent
                parent = None if candidate.parent is None else tree[candidate.parent]
                state = () if parent is None else (parent.state_key, parent.remaining)
                found.setdefault((depth, state, candidate.turn.prompt), []).append((candidate, (i, candidate.parent)))
    return {state: own for state, own in found.items() if max(Counter(node for _, node in own).values()) > 1}


@pytest.mark.parametrize("size_power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_response_of_an_expanded_state_is_compared_once_with_those_of_its_state(seed: int, size_power: float):
    trees = trees_of(seed)
    objective = GRPO(searched=TreeCredit(MeanBackup(), size_power=size_power, drop_uniform=False))
    states = states_of(objective, group_of(*trees))
    expected = expanded(trees)
    count = sum(expansions(own) for own in expected.values())
    assert len(states) == len(expected)
    for state, own in zip(states, expected.values(), strict=True):
        assert [response.turns for response in state.members] == [(candidate.turn,) for candidate, _ in own]
        assert {(response.origin, response.truncated) for response in state.members} == {(Origin.SAMPLED, False)}
        assert len({response.states for response in state.members}) == 1
        assert state.weight * len(own) == pytest.approx(expansions(own) * count**-size_power)
    total = sum(state.weight * len(state.members) for state in states)
    assert total == pytest.approx(count ** (1 - size_power) if count else 0.0)


def expansions(own: list[tuple[Candidate, object]]) -> int:
    return sum(draws > 1 for draws in Counter(node for _, node in own).values())


def test_the_random_trees_merge_states():
    own = [each for seed in SEEDS for each in expanded(trees_of(seed)).values()]
    assert any(expansions(each) > 1 for each in own)
    assert any(expansions(each) < len({node for _, node in each}) for each in own)  # a lone response joins


@pytest.mark.parametrize("backup", [MaxBackup(), MeanBackup()], ids=repr)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_response_has_the_value_of_the_backup(seed: int, backup: MaxBackup | MeanBackup):
    trees = trees_of(seed)
    values = {id(c): v for tree, own in zip(trees, backup(trees), strict=True) for c, v in zip(tree, own, strict=True)}
    states = states_of(GRPO(searched=TreeCredit(backup, drop_uniform=False)), group_of(*trees))
    for state, own in zip(states, expanded(trees).values(), strict=True):
        assert values_of(state) == pytest.approx([values[id(candidate)] for candidate, _ in own])


@pytest.mark.parametrize("seed", SEEDS)
def test_states_of_equal_values_are_left_out_and_leave_no_weight(seed: int):
    group = group_of(*trees_of(seed))
    every = states_of(GRPO(searched=TreeCredit(drop_uniform=False)), group)
    kept = states_of(GRPO(searched=TreeCredit()), group)
    varied = [state for state in every if max(values_of(state)) - min(values_of(state)) > 1e-6]
    assert [state.members for state in kept] == [state.members for state in varied]
    if kept:
        assert sum(state.weight * len(state.members) for state in kept) == pytest.approx(1.0)


def test_responses_that_meet_in_a_state_by_chance_are_no_comparison():
    """Two whole trajectories with an equal first response: one state was expanded, and the second is visited twice."""
    meeting = [candidate_of("a"), candidate_of("a"), *(candidate_of(t, i, done=True) for i, t in enumerate("ab"))]
    [state] = GRPO(searched=TreeCredit(drop_uniform=False)).comparisons(group_of(tuple(meeting)))
    assert [response.turns[0] for response in state.members] == [candidate.turn for candidate in meeting[:2]]


def test_the_credit_is_that_of_grpo_within_a_state():
    tree = (
        candidate_of("ab", key="s", succeeded=True),  # 1
        candidate_of("b", key="t", score=0.4),  # 0.5 * 0.4
        candidate_of("c", key="u", score=0.0),  # 0.9, by its second response
        candidate_of("a", 2, key="v", done=True),  # 0
        candidate_of("b", 2, key="v", succeeded=True),  # 1
    )
    (_, first), (_, second) = credit_of(GRPO(searched=TreeCredit()), group_of(tree))
    values = torch.tensor([1.0, 0.2, 0.9])
    expected = (values - values.mean()) / values.std()
    for credit, advantage in zip(first, expected, strict=True):
        torch.testing.assert_close(credit.advantages, advantage.expand(credit.advantages.shape), rtol=1e-4, atol=1e-5)
    # Two states weigh half each: three responses of 2, 1 and 1 tokens in the one, two of one in the other.
    assert [credit.weights.tolist() for credit in first] == [pytest.approx([1 / 12] * 2), *[pytest.approx([1 / 6])] * 2]
    assert [credit.advantages.item() for credit in second] == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-4)
    assert [credit.weights.item() for credit in second] == [0.25, 0.25]
    assert sum(float(c.normalizers.sum()) for c in [*first, *second]) == pytest.approx(1.0)


@pytest.mark.parametrize("objective", [GRPO, RLOO], ids=lambda kind: kind.__name__)
def test_plain_samples_beside_searches_keep_their_credit(objective: Any):
    plain = tuple(trajectory_of([(2, value), (1, 0.0)]) for value in (0.0, 1.0, 0.5))
    demonstrated = trajectory_of([(3, 0.0)], origin=Origin.DEMONSTRATED)
    varied = (candidate_of("a", done=True), candidate_of("b", succeeded=True))
    alone = Group(7, plain)
    [credits] = objective().credit([alone], [[zero_estimates(t) for t in plain]])
    arguments = {"searched": TreeCredit(), "supervised": Supervised()}
    [(whole, own), *states] = credit_of(objective(**arguments), group_of(varied, others=(*plain, demonstrated)))
    assert whole == Group(7, (*plain, demonstrated), env=1)
    assert whole.weight == 1.0
    assert states
    for kept, before in zip(own, credits, strict=False):
        for name in ("advantages", "weights", "normalizers"):
            assert torch.equal(getattr(kept, name), getattr(before, name))
    assert own[-1].weights.tolist() == [0.0] * 3
    assert own[-1].supervised_weights.min() > 0


def test_the_trajectory_of_a_strategy_that_branches_is_compared_by_its_states_alone():
    tree = (candidate_of("a", done=True), candidate_of("b", succeeded=True))
    vine = searched(tree, origin=Origin.SAMPLED)
    [state] = GRPO(searched=TreeCredit()).comparisons(Group(7, (vine,)))
    assert isinstance(state, Comparison)
    unbranched = searched((candidate_of("a", done=True),), origin=Origin.SAMPLED)
    assert GRPO(searched=TreeCredit()).comparisons(Group(7, (unbranched, unbranched))) == []


def test_successes_of_searches_are_imitated_beside_where_asked_for():
    tree = (candidate_of("a", done=True), candidate_of("b", succeeded=True))
    won, lost = searched(tree, ended=Ended.SUCCEEDED), searched(tree)
    group = Group(7, (won, lost))
    assert [type(each) for each in GRPO(searched=TreeCredit()).comparisons(group)] == [Comparison]
    [(whole, [credit]), (state, _)] = credit_of(GRPO(searched=TreeCredit(imitation=0.5)), group)
    assert whole == Group(7, (won,))
    assert credit.advantages.tolist() == [0.5]
    assert isinstance(state, Comparison)
    assert len(state.members) == 4  # of both searches


def test_a_group_has_signal_where_responses_of_a_state_differ_in_value():
    varied = (candidate_of("a", done=True), candidate_of("b", succeeded=True))
    uniform = (candidate_of("a", done=True), candidate_of("b", done=True))
    objective = GRPO(searched=TreeCredit())
    assert has_signal(group_of(varied), objective)
    assert not has_signal(group_of(uniform), objective)
    assert (Compared.of(group_of(varied), objective).std, Compared.of(group_of(uniform), objective).std) == (0.5, 0.0)
    assert has_signal(group_of(uniform), PPO(searched=TreeCredit()))  # whose baseline is the critic's
    cut = tuple(replace(candidate, ended=Ended.TOKEN_LIMIT) for candidate in varied)
    assert not has_signal(group_of(cut), DAPO(searched=TreeCredit()))


def test_a_critic_learns_from_states_of_equal_values_too():
    uniform = group_of((candidate_of("a", done=True), candidate_of("b", done=True)))
    assert GRPO(searched=TreeCredit()).comparisons(uniform) == []
    assert [len(state.members) for state in PPO(searched=TreeCredit()).comparisons(uniform)] == [2]


@pytest.mark.parametrize("searched", [TreeCredit(), ImitateSuccesses()], ids=repr)
def test_a_mask_of_truncated_samples_leaves_the_critic_alone(searched: SearchedCredit):
    cut = [trajectory_of([(2, 0.0)], ended=ended) for ended in (Ended.TOKEN_LIMIT, Ended.FAILED)]
    groups, estimates = [Group(7, tuple(cut))], [[zero_estimates(each) for each in cut]]
    [credits] = PPO(searched=searched, mask_truncated=True).credit(groups, estimates)
    assert [credit.weights.tolist() for credit in credits] == [[0, 0], [1, 1]]
    assert [credit.value_weights.tolist() for credit in credits] == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (GRPO, {"shaping": [ReturnAtEnd()]}, "GRPO.shaping is .*no shaping of rewards reaches it; use []"),
        (GiGPO, {}, "GiGPO.advantage is 'GroupInGroup': .*use GroupNormalised or LeaveOneOut"),
        (MaxRL, {}, "MaxRL.advantage is 'SuccessRelative': .*use GroupNormalised"),
        (PPO, {"advantage": TokenGAE(bootstrap_truncated=True)}, "PPO.advantage is 'TokenGAE': .*bootstrap_truncated"),
        (GRPO, {"kl": K1Reward()}, "GRPO.kl is .*use UnbiasedK3, K3 or K2"),
    ],
)
def test_parts_that_contradict_tree_credit_are_refused(kind: Any, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message.replace("[]", re.escape("[]"))):
        kind(searched=TreeCredit(), **arguments)


@pytest.mark.parametrize(("name", "value"), [("size_power", 1.5), ("size_power", -0.1), ("imitation", -1.0)])
def test_arguments_are_checked(name: str, value: float):
    with pytest.raises(ConfigError, match=rf"TreeCredit\.{name} is {value}"):
        TreeCredit(**{name: value})
