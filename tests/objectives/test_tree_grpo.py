"""Credit on the leaves of trees, written as one file by a user, against a sequence for every turn of every leaf."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
import torch
from ragged import zero_estimates
from torch import Tensor
from trees import random_tree, searched

from tests.tree_grpo import TreeGRPO, leaves
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import CISPO, GRPO, RLOO, PolicyGradient, SequenceMean, TokenMean
from tsr_lightning.objectives.rehearsal import rehearse
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Candidate, Comparison, Group, Turn

Key = tuple[tuple[int, ...], tuple[int, ...]]  # prompt and response
SEEDS = range(8)


def group_of(seed: int) -> Group:
    draws = random.Random(seed)
    return Group(7, tuple(searched(random_tree(draws)) for _ in range(3)))


def zeros(asked: Sequence[ToEstimate]) -> list[Estimates]:
    counts = [one.piece.trained_tokens for one in asked]
    return [Estimates(torch.zeros(n), torch.zeros(n), torch.zeros(n), 0.0) for n in counts]


def normalised(returns: Sequence[float]) -> Tensor:
    values = torch.tensor(returns, dtype=torch.float64)
    return (values - values.mean()) / (values.std() + 1e-6) if len(values) > 1 else torch.zeros(len(values))


def paths_of(tree: Sequence[Candidate]) -> list[list[Turn]]:
    """Returns the turns that lead to each leaf, by walking from it up to the root."""
    found = []
    for leaf in tree:
        if leaf.done and leaf.drawn:
            turns, above = [leaf.turn], leaf.parent
            while above is not None:
                turns, above = [tree[above].turn, *turns], tree[above].parent
            found.append(turns)
    return found


def brute_force(group: Group) -> dict[Key, Tensor]:
    """Weight times advantage of each prompt and response: every leaf trains all its turns, with the mean of the two
    advantages of the paper, divided by its own tokens; a step divides by the number of leaves."""
    of_trees = [paths_of(t.tree) for t in group.trajectories]
    returns = [[sum(turn.reward for turn in path) for path in paths] for paths in of_trees]
    across = normalised(list(chain.from_iterable(returns)))
    within = torch.cat([normalised(own) for own in returns])
    compared = [len(own) > 1 for own in returns for _ in own]  # a lone leaf is compared across trees alone
    found: dict[Key, Tensor] = {}
    for path, a, b, both in zip(chain.from_iterable(of_trees), across, within, compared, strict=True):
        tokens = sum(len(turn.response) for turn in path)
        for turn in path:
            own = torch.full((len(turn.response),), float(a + (b if both else 0.0)) / tokens)
            key = turn.prompt, turn.response
            found[key] = found.get(key, torch.zeros_like(own)) + own
    divisor = len(across) + sum(compared)
    return {key: value / divisor for key, value in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_turn_is_trained_once_with_the_credit_of_all_leaves_below_it(seed: int) -> None:
    group = group_of(seed)
    objective = GRPO(searched=TreeGRPO(), aggregation=SequenceMean())
    rows = credited_sequences([objective.comparisons(group)], objective, zeros, ProcessGroup()).sequences
    divisor = sum(float(row.normalizers.sum()) for row in rows if row.normalizers is not None)
    trained: dict[Key, Tensor] = {}
    states: dict[Key, int] = {}
    for row in rows:
        assert row.targets is not None
        key = tuple(row.ids[~row.mask].tolist()), tuple(row.ids[row.mask].tolist())
        own = row.targets.weights * row.targets.advantages / divisor
        trained[key] = trained.get(key, torch.zeros_like(own)) + own
        states[key] = states.get(key, 0) + 1
    expected = brute_force(group)
    assert trained.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(trained[key], value.float(), rtol=1e-4, atol=1e-6)
    paths = [path for t in group.trajectories for path in leaves(t.tree)]
    turns = {(s, t.prompt, t.response) for path in paths for s, t in zip(path.states, path.turns, strict=True)}
    assert len(rows) == len(turns)
    assert len(rows) < sum(len(path.turns) for path in paths) or seed != 0


@pytest.mark.parametrize("objective", [CISPO(), RLOO(), GRPO()], ids=lambda each: type(each).__name__)
def test_the_gradient_is_that_of_a_term_per_leaf_where_the_loss_is_linear_or_the_ratio_is_one(
    objective: PolicyGradient,
) -> None:
    """A clipped weight is linear in the advantage at any ratio; a clipped surrogate is at a ratio of 1."""
    objective = replace(objective, searched=TreeGRPO(), aggregation=TokenMean(), entropy_coefficient=0.1)
    moved = 0.4 if isinstance(objective, CISPO) else 0.0
    group = group_of(3)
    parts = objective.comparisons(group)
    credits = objective.credit(parts, [[zero_estimates(member) for member in part.members] for part in parts])
    per_leaf = [
        (turn, credit, slice(start, start + len(turn.response)))
        for part, own in zip(parts, credits, strict=True)
        for member, credit in zip(part.members, own, strict=True)
        for start, turn in zip(starts_of(member.turns), member.turns, strict=True)
    ]
    keys = sorted({(turn.prompt, turn.response) for turn, *_ in per_leaf})
    policy = torch.zeros(len(keys), dtype=torch.float64).requires_grad_()

    def gradient(terms: Sequence[tuple[Key, Targets]]) -> Tensor:
        total = sum(
            objective.loss(
                targets, Outputs(*[(policy[keys.index(key)] - moved).expand(len(targets.weights))] * 3)
            ).total
            for key, targets in terms
        )
        return torch.autograd.grad(total, policy)[0]

    rows = credited_sequences([parts], objective, zeros, ProcessGroup()).sequences
    merged = [((tuple(r.ids[~r.mask].tolist()), tuple(r.ids[r.mask].tolist())), r.targets) for r in rows if r.targets]
    every = [((turn.prompt, turn.response), targets_of(credit, span)) for turn, credit, span in per_leaf]
    assert len(merged) < len(every)
    expected = gradient(every)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(gradient(merged), expected, rtol=1e-6, atol=1e-6)


def starts_of(turns: Sequence[Turn]) -> list[int]:
    return [sum(len(turn.response) for turn in turns[:i]) for i in range(len(turns))]


def targets_of(credit: Credit, span: slice) -> Targets:
    zeros = torch.zeros_like(credit.weights[span])
    return Targets(
        old_logprobs=zeros,
        old_values=zeros,
        reference_logprobs=zeros,
        advantages=credit.advantages[span],
        value_targets=zeros,
        weights=credit.weights[span],
        value_weights=zeros,
        supervised_weights=zeros,
        turn_starts=zeros,
        observation_weights=zeros,
    )


def test_it_passes_its_rehearsal() -> None:
    rehearse(GRPO(searched=TreeGRPO()))


class ForgetsTheTree(TreeGRPO):
    def needs_with(self, needs: object) -> object:
        return needs


class ForgetsTheStates(TreeGRPO):
    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        paths = tuple(replace(path, states=path.states[:1]) for t in group.trajectories for path in leaves(t.tree))
        return [Comparison(paths, weight=1.0)]


class ForgetsLoneLeaves(TreeGRPO):
    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        return [Comparison(leaves(group.trajectories[0].tree)[:1], weight=1.0)]


class WeighsByNothing(TreeGRPO):
    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        return [replace(each, weight=0.0) for each in super().comparisons(group, minimum_compared)]


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (ForgetsTheTree, r"GRPO\.comparisons gives nothing for made-up groups without \(Needs\.tree is False\) search"),
        (ForgetsTheStates, r"GRPO gives a path of 2 turns and 1 states: give the state that each turn was proposed in"),
        (ForgetsLoneLeaves, r"GRPO compares 1 with one another, and its baseline needs 2 \(minimum_compared\)"),
        (WeighsByNothing, r"GRPO gives a comparison of weight 0\.0: let it be above 0 and finite"),
    ],
)
def test_a_broken_version_is_refused_before_a_model_loads(broken: type[TreeGRPO], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        rehearse(GRPO(searched=broken()))
