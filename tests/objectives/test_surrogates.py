"""Surrogates against plain loops over the cited equations, in float64, on ragged trajectories."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Outputs, Targets
from tsr_lightning.objectives import (
    CISPO,
    GRPO,
    GSPO,
    Clipped,
    ClippedWeight,
    GeometricMean,
    PolicyGradient,
    SoftGate,
    Surrogate,
    TurnClipped,
    Unclipped,
)
from tsr_lightning.objectives.terms import clipped_weight, turn_log_ratios

TURNS = ([3, 1, 2], [1], [4, 0, 5], [2, 2], [7], [1, 1, 1])  # trained tokens of each turn of each trajectory
ADVANTAGES = (1.3, -0.7, 0.0, -2.1, 0.4, 0.0)  # of each trajectory: 0 in a group of equal returns
WEIGHTS = (1.0, 0.5, 1.0, 2.0, 0.0, 1.0)  # of each trajectory: 0 where it is left out


class Token(NamedTuple):
    """Of one sampled token."""

    logprob: Tensor  # [] a leaf
    old: float
    advantage: float
    weight: float


TurnLoss = Callable[[Sequence[Token]], list[Tensor]]  # the loss of each token of a turn


def ratio(token: Token) -> Tensor:
    return (token.logprob - token.old).exp()


def ppo_clip(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    """Equation 7 of arXiv 1707.06347."""
    clipped = min(max(ratio.item(), 1 - low), 1 + high)
    unclipped = ratio * advantage
    return -unclipped if unclipped.item() <= clipped * advantage else torch.tensor(-clipped * advantage)


def dual_clip(low: float, high: float, c: float) -> TurnLoss:
    """Equation 5 of arXiv 1912.09729: for A < 0, max(min(r A, clip(r) A), c A) is maximised."""

    def of(turn: Sequence[Token]) -> list[Tensor]:
        losses = []
        for token in turn:
            loss = ppo_clip(ratio(token), token.advantage, low, high)
            if token.advantage < 0 and loss.item() > -c * token.advantage:
                loss = torch.tensor(-c * token.advantage)
            losses.append(loss)
        return losses

    return of


def gspo_token(low: float, high: float) -> TurnLoss:
    """Equations 13 and 14 of arXiv 2507.18071; the sequence is the turn."""

    def of(turn: Sequence[Token]) -> list[Tensor]:
        s = math.exp(sum(token.logprob.item() - token.old for token in turn) / max(1, len(turn)))
        return [
            ppo_clip(s * token.logprob.exp() / token.logprob.exp().item(), token.advantage, low, high) for token in turn
        ]

    return of


def cispo(low: float | None, high: float) -> TurnLoss:
    """Equations 4 and 5 of arXiv 2506.13585."""

    def of(turn: Sequence[Token]) -> list[Tensor]:
        losses = []
        for token in turn:
            weight = min(ratio(token).item(), 1 + high)
            if low is not None:
                weight = max(weight, 1 - low)
            losses.append(-weight * token.advantage * token.logprob)
        return losses

    return of


def sapo(positive: float, negative: float) -> TurnLoss:
    """arXiv 2511.20347: sigmoid(tau (r - 1)) 4 / tau is maximised in place of r."""

    def of(turn: Sequence[Token]) -> list[Tensor]:
        losses = []
        for token in turn:
            tau = positive if token.advantage > 0 else negative
            losses.append(-4 / tau / (1 + torch.exp(-tau * (ratio(token) - 1))) * token.advantage)
        return losses

    return of


def gmpo(width: float) -> TurnLoss:
    """arXiv 2507.20673: the root of degree |o| of the product of min(r^s, clip(r)^s)^s, with s the sign of A."""

    def of(turn: Sequence[Token]) -> list[Tensor]:
        product = torch.ones((), dtype=torch.float64)
        for token in turn:
            sign = math.copysign(1.0, token.advantage)
            of_token = ratio(token)
            clipped = min(max(of_token.item(), math.exp(-width)), math.exp(width))
            product = product * (of_token if of_token.item() ** sign <= clipped**sign else clipped)
        return [-(product ** (1 / len(turn))) * token.advantage for token in turn]

    return of


def likelihood(turn: Sequence[Token]) -> list[Tensor]:
    """arXiv 2504.02546: no ratio and no clip."""
    return [-token.advantage * token.logprob for token in turn]


def plain(surrogate: Surrogate) -> PolicyGradient:
    return GRPO(surrogate=surrogate, entropy_coefficient=0.0)


CASES: dict[str, tuple[PolicyGradient, TurnLoss]] = {
    "SAPO": (plain(SoftGate()), sapo(1.0, 1.05)),
    "SAPO, other temperatures": (plain(SoftGate(0.5, 3.0)), sapo(0.5, 3.0)),
    "GMPO": (plain(GeometricMean()), gmpo(0.4)),
    "GMPO, narrow": (plain(GeometricMean(0.05)), gmpo(0.05)),
    "GPG": (plain(Unclipped()), likelihood),
    "dual clip": (GRPO(surrogate=Clipped(0.2, 0.28, dual=1.5), entropy_coefficient=0.0), dual_clip(0.2, 0.28, 1.5)),
    "no dual clip": (GRPO(entropy_coefficient=0.0), dual_clip(0.2, 0.28, math.inf)),
    "GSPO": (GSPO(surrogate=TurnClipped(0.1, 0.15), entropy_coefficient=0.0), gspo_token(0.1, 0.15)),
    "GSPO's widths": (GSPO(entropy_coefficient=0.0), gspo_token(3e-4, 4e-4)),
    "CISPO": (CISPO(entropy_coefficient=0.0), cispo(None, 0.28)),
    "CISPO, two-sided": (CISPO(surrogate=ClippedWeight(0.2, 0.28), entropy_coefficient=0.0), cispo(0.2, 0.28)),
}


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.5, 2.0])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_the_equation(case: str, spread: float):
    objective, turn_loss = CASES[case]
    generator = torch.Generator().manual_seed(3)
    n = sum(map(sum, TURNS))
    old = -3 * torch.rand(n, generator=generator, dtype=torch.float64)
    now = (old + spread * torch.randn(n, generator=generator, dtype=torch.float64)).requires_grad_()
    tokens = iter(now.unbind())
    olds = iter(old.tolist())
    total, advantages, weights, starts = torch.zeros((), dtype=torch.float64), [], [], []
    for lengths, advantage, weight in zip(TURNS, ADVANTAGES, WEIGHTS, strict=True):
        for length in lengths:
            turn = [Token(next(tokens), next(olds), advantage, weight) for _ in range(length)]
            for token, loss in zip(turn, turn_loss(turn), strict=True):
                total = total + token.weight * loss
            advantages += [advantage] * length
            weights += [weight] * length
            starts += [float(i == 0) for i in range(length)]
    [expected] = torch.autograd.grad(total, now)
    zeros = torch.zeros(n, dtype=torch.float64)
    targets = Targets(
        old_logprobs=old,
        old_values=zeros,
        reference_logprobs=zeros,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        value_targets=zeros,
        weights=torch.tensor(weights, dtype=torch.float64),
        value_weights=zeros,
        supervised_weights=zeros,
        turn_starts=torch.tensor(starts, dtype=torch.float64),
        observation_weights=zeros,
    )
    loss = objective.loss(targets, Outputs(now, zeros, zeros))
    [gradient] = torch.autograd.grad(loss.total, now)
    torch.testing.assert_close(loss.total, total, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    clipped = loss.stats["clip_fraction"].item()
    assert clipped == pytest.approx(loss.stats["clip_fraction_low"].item() + loss.stats["clip_fraction_high"].item())
    if spread == 2.0 and not case.startswith(("SAPO", "GPG")):  # which have no clip
        assert clipped > 0.1  # or the clip was not tested


@pytest.mark.parametrize("surrogate", [GeometricMean(), TurnClipped(), Clipped(), SoftGate(), ClippedWeight()], ids=str)
def test_a_masked_token_is_not_trained_and_the_others_are_as_without_it(surrogate: Surrogate):
    """On policy, where all of them are the policy gradient."""
    logprobs = torch.tensor([-1.0, -2.0, -0.5, -3.0], requires_grad=True)
    mask = torch.tensor([1.0, 0.0, 0.0, 1.0])
    for advantage in (1.0, -2.0):
        found = surrogate(logprobs, logprobs - logprobs.detach(), targets_of((advantage * mask).tolist(), [1, 0, 0, 0]))
        [gradient] = torch.autograd.grad(found.losses.sum(), logprobs)
        torch.testing.assert_close(gradient, -advantage * mask)


def test_dual_clip_by_hand():
    # c = 3, advantage -1, ratios 0.5, 2 and 4: max(r, 1 - low) = 0.8, 2 and 4, of which 4 is limited to 3.
    log_ratios = torch.tensor([0.5, 2.0, 4.0]).log().requires_grad_()
    targets = targets_of([-1.0] * 3)
    clipped = Clipped(dual=3.0)(log_ratios, log_ratios, targets)
    torch.testing.assert_close(clipped.losses, torch.tensor([0.8, 2.0, 3.0]))
    assert clipped.clipped_low.tolist() == [True, False, False]
    assert clipped.clipped_high.tolist() == [False, False, True]
    clipped.losses.sum().backward()
    torch.testing.assert_close(log_ratios.grad, torch.tensor([0.0, 2.0, 0.0]))
    # A positive advantage is not touched by it.
    assert Clipped(high=9.0, dual=3.0)(log_ratios, log_ratios, targets_of([1.0] * 3)).losses[2].item() == -4.0


def test_a_turn_is_clipped_as_a_whole():
    # Two turns, with log ratios (0.3, -0.1) and (0.5): means 0.1 and 0.5, so ratios 1.105, 1.105 and 1.649.
    logprobs = torch.tensor([0.3, -0.1, 0.5]).requires_grad_()
    clipped = TurnClipped(0.2, 0.2)(logprobs, logprobs, targets_of([1.0] * 3, turn_starts=[1.0, 0.0, 1.0]))
    torch.testing.assert_close(clipped.losses, -torch.tensor([math.exp(0.1), math.exp(0.1), 1.2]))
    assert clipped.is_clipped.tolist() == [False, False, True]
    clipped.losses.sum().backward()
    torch.testing.assert_close(logprobs.grad, -torch.tensor([math.exp(0.1), math.exp(0.1), 0.0]))


def test_the_ratio_of_a_turn_is_exact_however_unlikely_its_tokens():
    logprobs = torch.tensor([-700.1, -0.3, -55.5])
    of_turn = turn_log_ratios(logprobs, torch.tensor([3e-4, 3e-4, 3e-4]), torch.tensor([1.0, 0.0, 0.0]))
    assert of_turn.tolist() == torch.tensor([3e-4] * 3).tolist()


def test_a_weight_is_clipped_whatever_the_advantage_and_keeps_its_gradient():
    # Ratios 0.5, 2 and 8, advantages 1, -1 and -1; the top is 5.
    logprobs = torch.tensor([0.5, 2.0, 8.0]).log().requires_grad_()
    weighted = clipped_weight(logprobs, logprobs, torch.tensor([1.0, -1.0, -1.0]), low=None, high=4.0)
    assert weighted.is_clipped.tolist() == [False, False, True]
    weighted.losses.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-0.5, 2.0, 5.0]))
    both = clipped_weight(logprobs, logprobs, torch.tensor([1.0, -1.0, -1.0]), low=0.2, high=4.0)
    assert both.clipped_low.tolist() == [True, False, False]


def targets_of(advantages: list[float], turn_starts: list[float] | None = None) -> Targets:
    zeros = torch.zeros(len(advantages))
    starts = torch.ones(len(advantages)) if turn_starts is None else torch.tensor(turn_starts)
    return Targets(zeros, zeros, zeros, torch.tensor(advantages), zeros, zeros + 1, zeros, zeros, starts, zeros)
