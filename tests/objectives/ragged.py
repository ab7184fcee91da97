"""Random groups with what makes credit hard. No tests in here.

Several turns, one-token turns and turns without tokens, zero rewards, unreadable turns, trajectories that a token limit
ended, groups of equal returns, and searched members.
"""

import random
from collections.abc import Sequence

import torch

from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory, Turn

ENDINGS = [Ended.SUCCEEDED] * 4 + [Ended.FAILED] * 2 + [Ended.TURN_LIMIT] * 2 + [Ended.TOKEN_LIMIT]


def turn_of(tokens: int, reward: float, *, valid: bool = True, finished: bool = True) -> Turn:
    return Turn(
        prompt=(1,),
        response=(2,) * tokens,
        behaviour_logprobs=(-1.0,) * tokens,
        finished=finished,
        messages=(),
        text="",
        reward=reward,
        valid=valid,
        effective=valid,
        action="",
    )


def trajectory_of(
    turns: Sequence[Turn | tuple[int, float]],
    *,
    origin: Origin = Origin.SAMPLED,
    ended: Ended = Ended.FAILED,
) -> Trajectory:
    """From turns, or the trained tokens and the reward of each."""
    return Trajectory(
        instance=0,
        member=0,
        strategy="Sample",
        origin=origin,
        turns=tuple(turn if isinstance(turn, Turn) else turn_of(*turn) for turn in turns),
        ended=ended,
        final_prompt=(1,),
        final_messages=(),
    )


def group_of(*trajectories: Trajectory) -> Group:
    return Group(0, trajectories)


def zero_estimates(trajectory: Trajectory) -> Estimates:
    zeros = torch.zeros(trajectory.trained_tokens)
    return Estimates(zeros, zeros, zeros, 0.0)


def ragged_groups(seed: int, *, searched: bool = False, groups: int = 6, size: int = 5) -> list[Group]:
    """The first group has equal returns, and the last trajectory of all ran out of tokens."""
    draws = random.Random(seed)

    def random_turn(equal: bool, first: bool) -> Turn:
        tokens = draws.choice([1, 1, 2, 5] if first else [0, 1, 1, 3, 6])
        reward = 0.0 if equal else draws.choice([0.0, 0.0, -0.1, 1.0, draws.gauss(0, 1)])
        return turn_of(tokens, reward, valid=draws.random() < 0.7, finished=draws.random() < 0.8)

    def member(group: int, index: int) -> Trajectory:
        turns = [random_turn(group == 0, k == 0) for k in range(draws.randint(1, 4))]
        return trajectory_of(
            turns,
            origin=Origin.SEARCHED if searched and draws.random() < 0.3 else Origin.SAMPLED,
            ended=Ended.TOKEN_LIMIT if (group, index) == (groups - 1, size - 1) else draws.choice(ENDINGS),
        )

    return [Group(i, tuple(member(i, j) for j in range(size))) for i in range(groups)]
