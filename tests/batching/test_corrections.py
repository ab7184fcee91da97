"""Corrections against plain loops in float64, and by enumeration: samples of one policy then stand for another."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.objectives.test_losses import targets_of
from tsr_lightning.batching.corrections import Correction, Level, MaskedImportance, TruncatedImportance
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.surrogates import Clipped, ClippedWeight, Surrogate, TurnClipped
from tsr_lightning.objectives.terms import log_ratio

LEVELS: list[Level] = ["token", "turn", "trajectory"]
LENGTHS = [3, 1, 4, 2]


def loop(old: Tensor, engine: Tensor, level: Level) -> list[float]:
    """rho of every token: verl's and TRL's per token and per sequence, and the same over the tokens of a turn."""
    differences = [float(one) - float(two) for one, two in zip(old, engine, strict=True)]
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    turns = [differences[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]
    if level == "token":
        return [math.exp(each) for each in differences]
    if level == "turn":
        return [math.exp(sum(turn)) for turn in turns for _ in turn]
    return [math.exp(sum(differences))] * len(differences)


@pytest.fixture
def logprobs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    old, engine = -3 * torch.rand(2, sum(LENGTHS), generator=generator, dtype=torch.float64)
    return old, old + (engine - engine.mean()) / 3


@pytest.mark.parametrize("level", LEVELS)
def test_truncated(level: Level, logprobs: tuple[Tensor, Tensor]) -> None:
    old, engine = logprobs
    expected = [min(rho, 1.1) for rho in loop(old, engine, level)]
    found = TruncatedImportance(level, cap=1.1)(old - engine, LENGTHS)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.1), (0.9, 1.2), (0.5, 5.0)])
def test_masked(level: Level, low: float, high: float, logprobs: tuple[Tensor, Tensor]) -> None:
    old, engine = logprobs
    expected = [rho if low <= rho <= high else 0.0 for rho in loop(old, engine, level)]
    found = MaskedImportance(level, low, high)(old - engine, LENGTHS)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_loops_differ_and_both_bounds_act(logprobs: tuple[Tensor, Tensor]) -> None:
    token, turn, trajectory = (loop(*logprobs, level) for level in LEVELS)
    assert token != turn != trajectory
    assert min(token) < 0.9
    assert max(token) > 1.2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("correction", [TruncatedImportance, MaskedImportance])
def test_agreement_has_a_weight_of_exactly_1(correction: type[Correction], level: Level) -> None:
    assert correction(level)(torch.zeros(10), LENGTHS).tolist() == [1.0] * 10
    assert correction(level)(torch.zeros(0), []).tolist() == []


def test_ratios_are_finite() -> None:
    assert TruncatedImportance("trajectory", cap=1e6)(torch.full((10,), 500.0), LENGTHS).tolist() == [1e6] * 10
    assert MaskedImportance("token", 0.0, 5.0)(torch.full((10,), -500.0), LENGTHS).max() < 1e-8


@pytest.mark.parametrize(("level", "is_exact"), [("trajectory", True), ("token", False)])
def test_the_mean_over_the_engines_samples_is_that_over_the_trainers(level: Level, is_exact: bool) -> None:
    """Of any figure of a trajectory of three tokens out of four, summed over all of them. By token it is biased."""
    generator = torch.Generator().manual_seed(1)
    trainer, engine = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).log_softmax(-1)
    figures = torch.randn(4, 4, 4, generator=generator, dtype=torch.float64)
    correction = TruncatedImportance(level, cap=1e9)
    corrected = expected = 0.0
    for ids in product(range(4), repeat=3):
        place = torch.arange(3), torch.tensor(ids)
        weight = correction(trainer[place] - engine[place], [1, 2])[0]
        corrected += float(engine[place].sum().exp() * weight * figures[ids])
        expected += float(trainer[place].sum().exp() * figures[ids])
    assert (corrected == pytest.approx(expected, rel=1e-12)) is is_exact


@pytest.mark.parametrize(
    "surrogate", [Clipped(), Clipped(dual=1.2), ClippedWeight(0.2, 0.28), TurnClipped(0.05, 0.05)], ids=repr
)
def test_a_weight_on_the_advantage_is_a_weight_on_the_loss(surrogate: Surrogate) -> None:
    """With its gradient; so a correction needs no place of its own in a loss."""
    generator = torch.Generator().manual_seed(5)
    old, advantages, moves = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    weights = torch.rand(20, generator=generator, dtype=torch.float64) * 2
    weights[::5] = 0.0
    starts = (torch.arange(20) % 4 == 0).double()

    def losses(advantages: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = (old + 0.3 * moves).requires_grad_()
        targets = targets_of(20, advantages=advantages, turn_starts=starts)
        return surrogate(logprobs, log_ratio(logprobs, old), targets).losses, logprobs

    (scaled, one), (plain, two) = losses(advantages * weights), losses(advantages)
    torch.testing.assert_close(scaled, weights * plain, rtol=1e-12, atol=1e-15)
    scaled.sum().backward()
    (weights * plain).sum().backward()
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedImportance(cap=0.5), r"TruncatedImportance\.cap is 0\.5"),
        (lambda: TruncatedImportance(cap=math.nan), r"TruncatedImportance\.cap is nan"),
        (lambda: MaskedImportance(low=1.5), r"MaskedImportance\.low is 1\.5"),
        (lambda: MaskedImportance(high=0.9), r"MaskedImportance\.high is 0\.9"),
    ],
)
def test_bounds_that_do_not_hold_1_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
