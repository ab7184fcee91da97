"""What a cell is worth: the probability of reaching the goal, by value iteration over gymnasium's table, slip included.

The value with k actions left follows from the one with k - 1:

    V_0(cell) = 1 at a goal, else 0
    V_k(cell) = max_a sum_o p(o | cell, a) V_{k-1}(o)

An end leads to itself with probability 1, so goals keep 1 and holes keep 0. Each action is chosen here with the cell in
sight; a turn of several actions is chosen blind, so where the ice slips V is an upper bound for such turns.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.envs.frozen_lake.dynamics import Ice, ice
from tsr_lightning.envs.frozen_lake.maps import GOAL, Rows

# Among actions that win equally often, the sooner win: the discount decides nothing else.
TIE_DISCOUNT = 0.9
TIE = 1e-9


@lru_cache(maxsize=4096)
def chances(rows: Rows, success_rate: float, horizon: int) -> list[list[float]]:
    """V: [horizon + 1][C], the probability of reaching a goal with 0..horizon actions left."""
    return [value.tolist() for value, _ in _iterate(ice(rows, success_rate), horizon)]


@lru_cache(maxsize=4096)
def best_actions(rows: Rows, success_rate: float, horizon: int) -> list[list[int]]:
    """The best action: [horizon + 1][C], row k for k actions left (with none left: the discounted one's)."""
    lake = ice(rows, success_rate)
    sooner = _discounted(lake)
    best = [sooner.argmax(-1).tolist()]
    for _, quality in _iterate(lake, horizon)[1:]:
        ties = quality >= quality.max(-1, keepdims=True) - TIE
        best.append(np.where(ties, sooner, -1.0).argmax(-1).tolist())
    return best


def _quality(lake: Ice, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Q: [C, 4] from the value [C] of where the actions lead."""
    return (lake.probability * value[lake.target]).sum(-1)


def _iterate(lake: Ice, horizon: int) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """V_k [C] and Q_k [C, 4] for k = 0..horizon."""
    value = np.array([letter == GOAL for letter in lake.letters], dtype=np.float64)
    steps = [(value, np.repeat(value[:, None], 4, axis=1))]
    for _ in range(horizon):
        quality = _quality(lake, value)
        value = np.minimum(quality.max(-1), 1.0)  # probabilities that add up to 1 + 2e-16 are still 1
        steps.append((value, quality))
    return steps


def _discounted(lake: Ice) -> NDArray[np.float64]:
    """Q: [C, 4] without a horizon; it points to the goal even where the actions left cannot reach it."""
    value = np.array([letter == GOAL for letter in lake.letters], dtype=np.float64)
    goal = value > 0
    while True:
        quality = TIE_DISCOUNT * _quality(lake, value)
        new = np.where(goal, 1.0, quality.max(-1))
        if np.abs(new - value).max() < TIE:
            return quality
        value = new
