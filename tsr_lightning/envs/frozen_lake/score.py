"""The value of a cell: the probability of reaching the goal, by value iteration over gymnasium's table, slip included.

The value with k actions left follows from the one with k - 1:

    V_0(cell) = 1 at a goal, else 0
    V_k(cell) = max_a sum_o p(o | cell, a) V_{k-1}(o)

Goals and holes lead to themselves with probability 1, so goals keep 1 and holes keep 0. Each action is chosen knowing
the cell; the actions of a turn are chosen all at once, so on slippery ice V is an upper bound for longer turns.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.envs.frozen_lake.dynamics import Dynamics, dynamics
from tsr_lightning.envs.frozen_lake.maps import GOAL, Rows

# Among actions of equal value the one that wins sooner; the discount decides nothing else.
TIE_DISCOUNT = 0.9
TIE = 1e-9


@lru_cache(maxsize=4096)
def chances(rows: Rows, success_rate: float, horizon: int) -> list[list[float]]:
    """V: [horizon + 1][C], the probability of reaching a goal with 0..horizon actions left."""
    return [value.tolist() for value, _ in _iterate(dynamics(rows, success_rate), horizon)]


@lru_cache(maxsize=4096)
def best_actions(rows: Rows, success_rate: float, horizon: int) -> list[list[int]]:
    """The best action: [horizon + 1][C], row k for k actions left (with none left: the discounted one's)."""
    lake = dynamics(rows, success_rate)
    sooner = _discounted(lake)
    best = [sooner.argmax(-1).tolist()]
    for _, quality in _iterate(lake, horizon)[1:]:
        ties = quality >= quality.max(-1, keepdims=True) - TIE
        best.append(np.where(ties, sooner, -1.0).argmax(-1).tolist())
    return best


def _quality(lake: Dynamics, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Q: [C, 4] from V: [C] of the cells that actions lead to."""
    return (lake.probability * value[lake.target]).sum(-1)


def _iterate(lake: Dynamics, horizon: int) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """V_k [C] and Q_k [C, 4] for k = 0..horizon."""
    value = np.array([letter == GOAL for letter in lake.letters], dtype=np.float64)
    steps = [(value, np.repeat(value[:, None], 4, axis=1))]
    for _ in range(horizon):
        quality = _quality(lake, value)
        value = np.minimum(quality.max(-1), 1.0)  # probabilities that add up to 1 + 2e-16 are still 1
        steps.append((value, quality))
    return steps


def _discounted(lake: Dynamics) -> NDArray[np.float64]:
    """Q: [C, 4], discounted and without a horizon: it leads to the goal even if the actions left cannot reach it."""
    value = np.array([letter == GOAL for letter in lake.letters], dtype=np.float64)
    goal = value > 0
    while True:
        quality = TIE_DISCOUNT * _quality(lake, value)
        new = np.where(goal, 1.0, quality.max(-1))
        if np.abs(new - value).max() < TIE:
            return quality
        value = new
