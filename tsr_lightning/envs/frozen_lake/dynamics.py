"""gymnasium's own transition table, laid out for drawing from it."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from numpy.typing import NDArray

from tsr_lightning.envs.frozen_lake.maps import FROZEN, START, Rows

ACTIONS = ("Left", "Down", "Right", "Up")  # gymnasium's order
# of an action: the upper edge of each outcome's piece of [0, 1), and the cell that it leads to
Outcomes = tuple[tuple[float, int], ...]


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
    filled = np.array([[(*by, nothing, nothing)[:3] for by in actions.values()] for actions in table.values()])
    probability, target = filled[..., 0].copy(), filled[..., 1].astype(np.int64)
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


def likeliest(lake: Dynamics, cell: int, action: int) -> int:
    """The most probable cell after an action."""
    chance = np.bincount(lake.target[cell, action], weights=lake.probability[cell, action])
    return int(chance.argmax())
