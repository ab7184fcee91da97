"""A lake as a decision process: gymnasium's own transition table, laid out for drawing from it, and values of cells.

The value of a cell is the probability of reaching the goal from it, slip included, by value iteration over the table.
The value with k actions left follows from the one with k - 1:

    V_0(cell) = 1 at a goal, else 0
    V_k(cell) = max_a sum_o p(o | cell, a) V_{k-1}(o)

Goals and holes lead to themselves with probability 1, so goals keep 1 and holes keep 0. Each action is chosen knowing
the cell; the actions of a turn are chosen all at once, so on slippery ice V is an upper bound for longer turns.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from numpy.typing import NDArray

from tsr_lightning.envs.frozen_lake.maps import ENDS, FROZEN, GOAL, START, Rows

ACTIONS = ("Left", "Down", "Right", "Up")  # gymnasium's order
# of an action: the upper edge of each outcome's piece of [0, 1), and the cell that it leads to
Outcomes = tuple[tuple[float, int], ...]

# Among actions of equal value the one that wins sooner; the discount decides nothing else.
TIE_DISCOUNT = 0.9
TIE = 1e-9


class Dynamics(NamedTuple):
    """A lake's dynamics. C cells, 4 actions, 3 outcomes of an action (the intended move and both sides)."""

    letters: str  # [C]
    ground: Rows  # the rows without the start, which no longer matters once an episode has begun
    outcomes: tuple[tuple[Outcomes, ...], ...]  # [C][4]
    probability: NDArray[np.float64]  # [C, 4, 3], 0 where there are fewer outcomes
    target: NDArray[np.int64]  # [C, 4, 3], cells


@lru_cache(maxsize=4096)
def dynamics(rows: Rows, success_rate: float) -> Dynamics:
    """The dynamics of a lake: the intended move with `success_rate`, each perpendicular one with half of the rest."""
    table = FrozenLakeEnv(desc=list(rows), is_slippery=True, success_rate=success_rate).P
    nothing = (0.0, 0, 0.0, False)  # fills up the one outcome of an action in a hole or at a goal
    filled = [(*outcomes, nothing, nothing)[:3] for actions in table.values() for outcomes in actions.values()]
    shape = len(table), len(ACTIONS), 3
    probability = np.array([outcome[0] for outcomes in filled for outcome in outcomes]).reshape(shape)
    target = np.array([outcome[1] for outcomes in filled for outcome in outcomes]).reshape(shape)
    edges = probability.cumsum(-1)
    edges[..., 2] = 1.0  # a sum of three floats may fall short of it
    drawn = tuple(
        tuple(tuple(zip(e, t, strict=True)) for e, t in zip(by_action, targets, strict=True))
        for by_action, targets in zip(edges.tolist(), target.tolist(), strict=True)
    )
    ground = tuple(row.replace(START, FROZEN) for row in rows)
    return Dynamics("".join(rows), ground, drawn, probability, target)


def land(outcomes: Outcomes, uniform: float) -> int:
    """The cell that a number in [0, 1) leads to: the inverse of the cumulative distribution."""
    for edge, cell in outcomes:
        if uniform < edge:
            return cell
    raise ValueError(f"{uniform} is no number in [0, 1)")


def wander(lake: Dynamics, cell: int, choices: Sequence[float], noise: Sequence[float]) -> int | None:
    """How many actions led to a goal, None where they did not: each is that of a number in [0, 1) of `choices`, and
    slips as that of `noise` says."""
    for step, (choice, slip) in enumerate(zip(choices, noise, strict=True)):
        if lake.letters[cell] in ENDS:
            return step if lake.letters[cell] == GOAL else None
        cell = land(lake.outcomes[cell][int(choice * len(ACTIONS))], slip)
    return len(choices) if lake.letters[cell] == GOAL else None


def likeliest(lake: Dynamics, cell: int, action: int) -> int:
    """The most probable cell after an action."""
    chance = np.bincount(lake.target[cell, action], weights=lake.probability[cell, action])
    return int(chance.argmax())


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
