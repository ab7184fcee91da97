"""Expected gradients by enumeration of all draws: which kinds of credit are unbiased, and of what the others are."""

import re

import pytest
import torch
from torch import Tensor

from benchmarks.gradients.cases import CASES, RETURN, TASKS, Case, Rollouts
from benchmarks.gradients.estimates import Figures
from tsr_lightning.search import Sample

UNBIASED = [case for case in CASES if case.target == RETURN]
BIASED = [
    case
    for case in CASES
    if case.target != RETURN
    and case.search in ("plain samples", "vine", "beam")
    and not re.search("as shipped|graph credit|Policy|Weights", case.credit)
]


@pytest.fixture(scope="module")
def rollouts() -> dict[str, Rollouts]:
    return {name: Rollouts(rules) for name, rules in TASKS.items()}


def figures(rollouts: Rollouts, case: Case) -> Figures:
    return rollouts.world.figures(case.objective, rollouts.of(case))


def named(case: Case) -> str:
    return f"{case.credit} on {case.search}"


@pytest.mark.parametrize("task", TASKS)
def test_the_search_plays_the_task_that_the_recursion_solves(task: str, rollouts: dict[str, Rollouts]):
    world = rollouts[task].world
    played = list(world.searches(Sample()))
    assert sum(probability for probability, _ in played) == pytest.approx(1)
    expected = sum(probability * search.trajectory.episode_return for probability, search in played)
    assert expected == pytest.approx(world.exact.values[world.rules.states[0]])
    gradient = sum(
        probability * search.trajectory.episode_return * likelihood_gradient(rollouts[task], search.trajectory.turns)
        for probability, search in played
    )
    torch.testing.assert_close(gradient, world.exact.gradient)


def likelihood_gradient(rollouts: Rollouts, turns: tuple) -> Tensor:
    states = {tuple(state): state for state in rollouts.world.rules.states}
    return rollouts.world.policy.scores([(states[turn.prompt], turn.response[0]) for turn in turns]).sum(0)


def marks_of(task: str, case: Case) -> list[pytest.MarkDecorator]:
    """Slip is the general task; without noise one case shows that the other is played too."""
    if task != "slip":
        return [] if case is UNBIASED[0] else [pytest.mark.exhaustive]
    return [pytest.mark.slow] if "graph" in case.credit else []


@pytest.mark.parametrize(
    ("task", "case"),
    [pytest.param(task, case, marks=marks_of(task, case)) for task in TASKS for case in UNBIASED],
    ids=lambda of: of if isinstance(of, str) else named(of),
)
def test_the_expected_gradient_is_that_of_the_return(case: Case, task: str, rollouts: dict[str, Rollouts]):
    found = figures(rollouts[task], case)
    assert found.cosine > 0
    assert found.bias < 1e-6


@pytest.mark.parametrize(("task", "bias"), [("no noise", 0.065), ("slip", 0.0356)])
def test_a_step_of_a_single_vine_is_biased(task: str, bias: float, rollouts: dict[str, Rollouts]):
    """It divides by the weight of its own states, which depends on what was drawn: the mean of a quotient, by
    enumeration, where the table has the quotient of two means."""
    [case] = [case for case in UNBIASED if case.search == "vine" and "critic" not in case.credit]
    world, vines = rollouts[task].world, rollouts[task].of(case)
    probabilities = torch.tensor([probability for probability, _ in vines], dtype=torch.float64)
    sums, divisors = world._steps(case.objective, [group for _, (group, _) in vines])
    divisors = torch.where(divisors > 0, divisors, 1.0)  # a vine without a comparison adds nothing
    quotients = sums / divisors[:, None, None]
    found = torch.einsum("g,gsa->sa", probabilities, quotients)
    goal = world.exact.gradient
    along = float((found * goal).sum() / goal.norm())
    assert float((found - along * goal / goal.norm()).norm() / along) == pytest.approx(bias, abs=2e-3)
    step = world.step(case.objective, vines, 1)  # the same by quadrature
    variance = float(probabilities @ (quotients - found).square().sum((1, 2)))
    assert step.bias == pytest.approx(float((found - along * goal / goal.norm()).norm() / along), rel=1e-6)
    assert step.noise == pytest.approx(variance**0.5 / along, rel=1e-6)


def test_more_groups_in_a_step_bring_less_bias_and_noise(rollouts: dict[str, Rollouts]):
    [case] = [case for case in UNBIASED if case.search == "vine" and "critic" not in case.credit]
    world, vines = rollouts["no noise"].world, rollouts["no noise"].of(case)
    four, sixteen = (world.step(case.objective, vines, count) for count in (4, 16))
    assert four.bias == pytest.approx(0.0196, abs=1e-3)
    assert sixteen.bias == pytest.approx(four.bias / 4, rel=0.15)
    assert sixteen.noise == pytest.approx(four.noise / 2, rel=0.05)
    plain = CASES[0]
    assert world.step(plain.objective, rollouts["no noise"].of(plain), 4).bias < 1e-6


@pytest.mark.parametrize("case", BIASED, ids=named)
def test_the_expected_gradient_is_that_of_something_else(case: Case, rollouts: dict[str, Rollouts]):
    assert figures(rollouts["no noise"], case).bias > 0.003


def test_imitating_plain_successes_follows_the_logarithm_of_their_probability(rollouts: dict[str, Rollouts]):
    [case] = [case for case in CASES if case.target == "log P(success)"]
    for task in rollouts.values():
        found = figures(task, case).gradient
        goal = task.world.exact.success_gradient
        cosine = (found * goal).sum() / (found.norm() * goal.norm())
        assert cosine.item() == pytest.approx(1, abs=1e-9)


def test_exact_scores_make_a_beam_right_in_every_state_but_not_over_states(rollouts: dict[str, Rollouts]):
    """Without noise: in each state a positive multiple of the exact gradient, of another size in each."""
    [case] = [case for case in CASES if case.exact_score]
    task = rollouts["no noise"]
    found, goal = figures(task, case).gradient[:, 1], task.world.exact.gradient[:, 1]
    ratios = (found / goal)[goal.abs() > 1e-9]
    assert ratios.min() > 0
    assert ratios.max() > 1.1 * ratios.min()
