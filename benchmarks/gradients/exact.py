"""The exact expected return, its gradient, and the policy's values, by a recursion over states."""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gradients.task import TURN_COST, Rules, Rung


class Exact(NamedTuple):
    """Of the policy with given logits."""

    gradient: Tensor  # [S, A] of the expected return
    success_gradient: Tensor  # [S, A] of the probability of success
    values: dict[Rung, float]  # the expected return from each state on


def exact(rules: Rules, logits: Tensor) -> Exact:
    """By automatic differentiation of the recursion, which shares nothing with search and credit."""
    parameters = logits.clone().requires_grad_()
    states = rules.states
    values, successes = (_values(rules, parameters, success_alone) for success_alone in (False, True))
    start = Rung(rules.turns, 0)
    gradients = [torch.autograd.grad(of[start], parameters)[0] for of in (values, successes)]
    return Exact(gradients[0], gradients[1], {state: values[state].item() for state in states})


def _values(rules: Rules, logits: Tensor, success_alone: bool) -> dict[Rung, Tensor]:
    """The expected return from each state on, or the probability of success."""
    probabilities = logits.softmax(-1)
    moves = ((0, 1 - rules.slip), (1, rules.slip))  # steps further, and their probability
    values: dict[Rung, Tensor] = {}
    for row in reversed(range(len(rules.states))):
        left, height = rules.states[row]
        total = torch.zeros((), dtype=logits.dtype)
        for steps in (1, 2):
            for further, probability in moves:
                after = height + steps + further
                value = logits.new_tensor(float(after == rules.goal) - (0.0 if success_alone else TURN_COST))
                if after < rules.goal and left > 1:
                    value = value + values[Rung(left - 1, after)]
                total = total + probabilities[row, steps - 1] * probability * value
        values[rules.states[row]] = total
    return values
