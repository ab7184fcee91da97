"""With one search per instance, objectives that differ in their comparison alone imitate successes in the same way, so
that one of them stands for the others in the grid of all combinations."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from commands import ROOT
from jsonargparse import ArgumentParser
from ragged import ragged_groups, zero_estimates

from tsr_lightning.batching.tensors import Credit, Outputs, Targets, columns
from tsr_lightning.objectives import Objective
from tsr_lightning.studies.grid import read_grid
from tsr_lightning.trajectory import Group, Origin

CONFIGS = ROOT / "configs"
SAME = [  # each as the first of its list
    ["grpo", "gigpo", "maxrl", "raft", "reinforce_rej", "rloo"],
    ["reinforce_plus_plus", "reinforce_plus_plus_baseline"],
]


def shipped(name: str) -> Objective:
    """The objective of a file, with imitation laid over it where it does not imitate by itself."""
    files = [f"objective/{name}.yaml", *["credit/imitate.yaml"] * (name != "raft")]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_subclass_arguments(Objective, "model.objective")
    parser.add_argument("--data.dynamic_sampling")
    return parser.instantiate(parser.parse_args([f"--config={CONFIGS}/{file}" for file in files])).model.objective


def single_searches() -> list[Group]:
    searches = (each for group in ragged_groups(0) for each in group.trajectories)
    return [Group(i, (replace(each, origin=Origin.SEARCHED),)) for i, each in enumerate(searches)]


def credits(objective: Objective, groups: list[Group]) -> list[Credit]:
    estimates = [[zero_estimates(each) for each in group.trajectories] for group in groups]
    return [own for (own,) in objective.credit(groups, estimates)]


def a_step(objective: Objective) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of 50 tokens and its gradient."""
    generator = torch.Generator().manual_seed(0)
    tensors = {field.name: torch.rand(50, generator=generator) for field in columns(Targets)}
    logprobs = (-torch.rand(50, generator=generator)).requires_grad_()
    loss = objective.loss(Targets(**tensors), Outputs(logprobs, torch.rand(50, generator=generator), torch.zeros(50)))
    loss.total.backward()
    assert logprobs.grad is not None
    return loss.total.detach(), logprobs.grad


@pytest.mark.parametrize(("one", "other"), [pair for names in SAME for pair in pairwise(names)])
def test_single_searches_are_credited_and_trained_on_in_the_same_way(one: str, other: str):
    first, second = shipped(one), shipped(other)
    groups = single_searches()
    for a, b in zip(credits(first, groups), credits(second, groups), strict=True):
        for field in columns(Credit):
            assert torch.equal(getattr(a, field.name), getattr(b, field.name)), field.name
    assert all(torch.equal(*pair) for pair in zip(a_step(first), a_step(second), strict=True))
    assert [first.comparisons(group) for group in groups] == [second.comparisons(group) for group in groups]


def test_an_objective_with_another_aggregation_does_not():
    groups = single_searches()
    pairs = zip(credits(shipped("grpo"), groups), credits(shipped("reinforce_plus_plus"), groups), strict=True)
    assert not all(torch.equal(a.weights, b.weights) for a, b in pairs)


def test_the_grid_of_combinations_leaves_out_these_alone():
    training = {arm.points["training"] for arm in read_grid(CONFIGS / "studies" / "combinations.yaml").arms}
    names = {path.stem for path in (CONFIGS / "objective").glob("*.yaml")} - {"sft", "remax"}  # plans of their own
    assert {name for name in names if f"{name.replace('_', '-')}-sample" not in training} == set()
    left_out = {name for name in names if f"{name.replace('_', '-')}-beam" not in training}
    assert left_out == {name for _, *others in SAME for name in others}
