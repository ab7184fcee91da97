"""The figures of a rollout."""

import random
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from callback_support import trajectory, turn

from tests.objectives.trees import candidate_of, random_tree, searched
from tsr_lightning.batching.tensors import Credit
from tsr_lightning.costs import Costs
from tsr_lightning.objectives import GRPO, PPO, GraphCredit, Objective, TreeCredit
from tsr_lightning.training.metrics import rollout_metrics, signal_metrics, step_metrics, tree_metrics, update_metrics
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory


def test_outcomes_are_separate_by_origin():
    outcomes = [(Origin.SAMPLED, False), (Origin.SAMPLED, True), (Origin.SEARCHED, False), (Origin.DEMONSTRATED, True)]
    members = tuple(replace(trajectory(0, i, succeeded=won), origin=origin) for i, (origin, won) in enumerate(outcomes))
    figures = rollout_metrics([Group(0, members)], [], Costs(), seconds=1.0, skipped=0)
    assert figures["rollout/success_rate"] == 0.5
    assert figures["rollout/sampled/success_rate"] == 0.5
    assert figures["rollout/searched/success_rate"] == 0.0
    assert figures["rollout/demonstrated/success_rate"] == 1.0


def test_the_search_gap_is_over_groups_that_hold_both():
    def group(instance: int, *members: tuple[Origin, float, bool]) -> Group:
        made = [
            (origin, trajectory(instance, i, turn(value), succeeded=won))
            for i, (origin, value, won) in enumerate(members)
        ]
        return Group(instance, tuple(replace(one, origin=origin) for origin, one in made))

    sampled, searched = Origin.SAMPLED, Origin.SEARCHED
    groups = [
        group(1, (sampled, 1.0, False), (sampled, 2.0, True), (searched, 5.0, True)),  # 5 − 1.5, 1 − 0.5
        group(2, (searched, 1.0, False), (searched, 3.0, True), (sampled, 4.0, True)),  # 2 − 4, 0.5 − 1
        group(3, (searched, 9.0, True)),
        group(4, (sampled, -9.0, False), (Origin.DEMONSTRATED, 9.0, True)),
    ]
    figures = rollout_metrics(groups, [], Costs(), seconds=1.0, skipped=0)
    assert figures["rollout/search_gap/return"] == pytest.approx((3.5 - 2.0) / 2)
    assert figures["rollout/search_gap/success_rate"] == pytest.approx((0.5 - 0.5) / 2)
    alone = rollout_metrics(groups[2:], [], Costs(), seconds=1.0, skipped=0)
    assert not any(name.startswith("rollout/search_gap") for name in alone)


def test_entropy_is_the_surprisal_of_samples_alone():
    first = trajectory(0, 0, turn(tokens=3, logprob=-0.5), turn(tokens=1, logprob=-2.0))
    second = trajectory(0, 1, turn(tokens=2, logprob=-1.0))
    searched = replace(trajectory(0, 2, turn(tokens=9, logprob=-9.0)), origin=Origin.SEARCHED)
    figures = rollout_metrics([Group(0, (first, second, searched))], [], Costs(), seconds=1.0, skipped=0)
    assert figures["rollout/sampled/entropy_per_token"] == pytest.approx((1.5 + 2.0 + 2.0) / 6)
    assert figures["rollout/sampled/entropy_per_turn"] == pytest.approx((1.5 + 2.0 + 2.0) / 3)
    assert [name for name in figures if "entropy" in name] == [
        "rollout/sampled/entropy_per_token",
        "rollout/sampled/entropy_per_turn",
    ]


def credit(advantages: list[float], weight: float = 1.0) -> Credit:
    given = torch.tensor(advantages)
    zeros, weights = torch.zeros_like(given), torch.full_like(given, weight)
    return Credit(given, zeros, weights, weights, zeros, zeros)


def test_the_tokens_of_updates_are_those_of_all_ranks():
    assert update_metrics(4, [{"computed": 5, "saved": 1}, {"computed": 7, "saved": 0}]) == {
        "cost/updates": 4,
        "computed": 12,
        "saved": 1,
    }


def test_signal_needs_an_advantage_and_a_weight():
    groups = [
        [credit([0.0, 0.0]), credit([0.0])],  # equal returns
        [credit([0.5, 0.5]), credit([-0.5, 0.0])],  # 3 of 4 tokens
        [credit([1.0], weight=0.0), credit([])],  # left out
    ]
    assert signal_metrics(groups) == {"rollout/signal_group_share": 1 / 3, "rollout/signal_token_share": 3 / 8}
    assert signal_metrics([[credit([])]]) == {"rollout/signal_group_share": 0.0, "rollout/signal_token_share": 0.0}


@pytest.mark.parametrize(
    ("weights", "ratios", "expected"),
    [
        ([0.25] * 4, [1.0] * 4, 1.0),
        ([0.25] * 4, [3.0] * 4, 1.0),
        ([0.25] * 4, [1.0, 0.0, 0.0, 0.0], 0.25),  # one of four counts
        ([0.5, 0.25, 0.25, 0.0], [1.0, 2.0, 0.0, 9.0], 1.0 / 1.5),  # (0.5 + 0.5)^2 / (1 * (0.5 + 1)); the last not
        ([2.0, 1.0, 1.0, 0.0], [1.0, 2.0, 0.0, 9.0], 1.0 / 1.5),  # whatever the weights sum to
    ],
)
def test_effective_sample_size_by_hand(weights: list[float], ratios: list[float], expected: float):
    pairs = list(zip(weights, ratios, strict=True))
    sums = {
        "policy_weight": sum(weights),
        "ratio": sum(w * r for w, r in pairs),
        "ratio_squared": sum(w * r * r for w, r in pairs),
    }
    figures = step_metrics(sums, {"ratio_max": 9.0})
    assert figures["train/effective_sample_size"] == pytest.approx(expected)
    assert figures["train/ratio_max"] == 9.0
    assert "train/ratio_squared" not in figures


def test_a_step_without_weights_or_ratios_has_no_effective_sample_size():
    for sums in ({"policy_weight": 1.0, "entropy": 2.0}, {"policy_weight": 0.0, "ratio": 0.0, "ratio_squared": 0.0}):
        assert "train/effective_sample_size" not in step_metrics(sums, {})


def responses_by_state(group: Group) -> list[list[float]]:
    """The values of the responses drawn in each state that some tree drew two or more of at one node: by the path to a
    node, which is walked for every candidate."""
    trees = [each.tree for each in group.trajectories]
    values = TreeCredit().backup(trees)
    drawn: dict[object, list[tuple[object, float]]] = defaultdict(list)
    for i, tree in enumerate(trees):
        for j, candidate in enumerate(tree):
            if not candidate.drawn:
                continue
            depth, above = 0, candidate.parent
            while above is not None:
                depth, above = depth + 1, tree[above].parent
            parent = None if candidate.parent is None else tree[candidate.parent]
            led_to = None if parent is None else (parent.state_key, parent.remaining)
            drawn[depth, led_to, candidate.turn.prompt].append(((i, candidate.parent), values[i][j]))
    return [
        [value for _, value in responses]
        for responses in drawn.values()
        if any([node for node, _ in responses].count(own) > 1 for own, _ in responses)
    ]


def of_trees(groups: list[Group], objective: Objective) -> dict[str, float]:
    return tree_metrics(groups, [objective.comparisons(group) for group in groups], objective)


def test_the_figures_of_trees_by_a_plain_count():
    draws = random.Random(3)
    groups = [Group(i, tuple(searched(random_tree(draws), member=j) for j in range(2))) for i in range(12)]
    states = [values for group in groups for values in responses_by_state(group)]
    varied = [values for values in states if max(values) > min(values)]
    assert 0 < len(varied) < len(states)
    share = {"rollout/signal_node_share": len(varied) / len(states)}
    of_varied = {"rollout/compared_responses": sum(map(len, varied))}
    of_all = {"rollout/compared_responses": sum(map(len, states))}
    assert of_trees(groups, GRPO(searched=TreeCredit())) == share | of_varied
    assert of_trees(groups, GRPO(searched=TreeCredit(drop_uniform=False))) == share | of_all
    assert of_trees(groups, PPO(searched=TreeCredit())) == share | of_all  # none is left out under a critic


def test_the_figures_of_a_graph_by_a_plain_count():
    """Plain samples: of the states that two of a group met, those whose responses differ in value. s and u are met
    twice, and u's responses all fail; nobody else met t."""

    def sample(member: int, states: str, ended: Ended) -> Trajectory:
        turns = tuple(
            candidate_of(text, reward=float(ended is Ended.SUCCEEDED)).turn for text in f"{member}b"[: len(states)]
        )
        return Trajectory(0, member, "Sample", Origin.SAMPLED, turns, ended, (), (), state_keys=tuple(states))

    group = Group(0, (sample(0, "su", Ended.FAILED), sample(1, "su", Ended.FAILED), sample(2, "st", Ended.SUCCEEDED)))
    for drops in (True, False):
        figures = of_trees([group], GRPO(searched=GraphCredit(drop_uniform=drops)))
        assert figures == {"rollout/signal_node_share": 1 / 2, "rollout/compared_responses": 3 if drops else 5}


def test_trees_without_an_expansion_have_no_share():
    single = searched(random_tree(random.Random(3))[:1])
    figures = of_trees([Group(0, (single,))], GRPO(searched=TreeCredit()))
    assert figures == {"rollout/signal_node_share": 0, "rollout/compared_responses": 0}
