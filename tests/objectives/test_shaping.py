"""Reward shaping and scaling over the rollout, against plain loops over the cited equations."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from ragged import group_of, ragged_groups, trajectory_of, zero_estimates

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    K3,
    PPO,
    Discount,
    GroupNormalised,
    ImitateSuccesses,
    OverlongPenalty,
    ReturnAtEnd,
    RewardShaping,
    RolloutScaled,
    Scale,
    SuccessSign,
    TokenGAE,
    TokenMean,
    TurnGAE,
)
from tsr_lightning.trajectory import Origin, Trajectory

TRAJECTORIES = [trajectory for group in ragged_groups(0) for trajectory in group.trajectories]
CENTRED = GroupNormalised(divide_by_std=False)


def rewards_of(trajectory: Trajectory) -> list[float]:
    return [turn.reward for turn in trajectory.turns]


def test_the_return_at_the_end():
    for trajectory in TRAJECTORIES:
        *early, last = ReturnAtEnd()(rewards_of(trajectory), trajectory)
        assert early == [0.0] * (len(trajectory.turns) - 1)
        assert last == trajectory.episode_return


def test_discount_by_hand():
    # 1, 0.5 * 4, 0.25 * 8
    assert Discount(0.5)([1.0, 4.0, 8.0], TRAJECTORIES[0]) == [1.0, 2.0, 2.0]
    assert Discount(1.0)([1.0, 4.0, 8.0], TRAJECTORIES[0]) == [1.0, 4.0, 8.0]
    assert Discount(0.0)([1.0, 4.0, 8.0], TRAJECTORIES[0]) == [1.0, 0.0, 0.0]


def test_scale_by_hand():
    assert Scale(0.5)([1.0, -4.0], TRAJECTORIES[0]) == [0.5, -2.0]


@pytest.mark.parametrize(("limit", "buffer", "penalty"), [(20, 5, 1.0), (20, 20, 0.3), (7, 1, 2.0)])
def test_overlong_penalty_equals_equation_13(limit: int, buffer: int, penalty: float):
    for length in range(1, 2 * limit):
        if length <= limit - buffer:
            expected = 0.0
        elif length <= limit:
            expected = ((limit - buffer) - length) / buffer
        else:
            expected = -1.0
        # the tokens of all turns count together
        one = trajectory_of([(length // 2, 0.25), (length - length // 2, 0.5)])
        shaped = OverlongPenalty(limit, buffer, penalty)(rewards_of(one), one)
        assert shaped == pytest.approx([0.25, 0.5 + penalty * expected], abs=1e-12)


def test_steps_apply_in_order():
    # 12 tokens of at most 10: the whole penalty of 1, before or after the second turn's reward is halved.
    one, two = trajectory_of([(6, 1.0), (6, 4.0)]), trajectory_of([(1, 0.0)])
    discount, penalty = Discount(0.5), OverlongPenalty(10, 5, 1.0)
    assert GRPO(shaping=[discount, penalty]).return_of(one) == 1.0 + (2.0 - 1.0)
    assert GRPO(shaping=[penalty, discount]).return_of(one) == 1.0 + 0.5 * (4.0 - 1.0)
    ((first, second),) = GRPO(advantage=CENTRED, shaping=[discount, penalty]).credit(
        [group_of(one, two)], [[zero_estimates(one), zero_estimates(two)]]
    )
    assert first.advantages.tolist() == [1.0] * 12
    assert second.advantages.tolist() == [-1.0]


SHAPINGS: list[list[RewardShaping]] = [
    [],
    [ReturnAtEnd()],
    [Discount(0.9)],
    [Scale(3.0), OverlongPenalty(12, 6, 0.5)],
    [OverlongPenalty(12, 6, 0.5), Discount(0.7), ReturnAtEnd()],
]


@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_baseline_compares_the_returns_that_the_filter_ranks_by(shaping: list[RewardShaping], seed: int):
    groups = ragged_groups(seed)
    objective = GRPO(advantage=CENTRED, shaping=shaping)
    credits = objective.credit(groups, [[zero_estimates(t) for t in group.trajectories] for group in groups])
    for group, own in zip(groups, credits, strict=True):
        returns = [objective.return_of(t) for t in group.trajectories]
        mean = math.fsum(returns) / len(returns)
        for value, credit in zip(returns, own, strict=True):
            assert credit.advantages.tolist() == pytest.approx([value - mean] * len(credit.advantages), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_turn_gae_on_shaped_rewards_equals_a_loop(seed: int):
    """Turn ends are steps; a turn without tokens hands its reward to the turn before it."""
    gamma, gae_lambda = 0.9, 0.8
    shaping = [Discount(0.95), ReturnAtEnd(), OverlongPenalty(12, 6, 0.5)]
    objective = PPO(advantage=TurnGAE(gamma, gae_lambda), whiten=False, shaping=shaping)
    for group in ragged_groups(seed):
        for one in group.trajectories:
            draws = random.Random(seed)
            values = [draws.gauss(0, 1) for _ in range(one.trained_tokens)]
            estimates = replace(zero_estimates(one), values=torch.tensor(values, dtype=torch.float64))
            ((credit,),) = objective.credit([group_of(one)], [[estimates]])
            assert credit.advantages.tolist() == pytest.approx(gae_by_loop(one, values, gamma, gae_lambda), abs=1e-6)


def gae_by_loop(one: Trajectory, values: Sequence[float], gamma: float, gae_lambda: float) -> list[float]:
    total = sum(0.95**t * turn.reward for t, turn in enumerate(one.turns))
    length = sum(len(turn.response) for turn in one.turns)
    total -= 0.5 * min(max((length - 6) / 6, 0), 1)
    rewards = [0.0] * (len(one.turns) - 1) + [total]
    lengths, merged = [], []
    for turn, reward in zip(one.turns, rewards, strict=True):
        if turn.response:
            lengths.append(len(turn.response))
            merged.append(reward)
        elif merged:
            merged[-1] += reward
    starts = [sum(lengths[:k]) for k in range(len(lengths))]
    advantages = []
    for k in range(len(lengths)):
        advantage = 0.0
        for later in range(k, len(lengths)):
            following = values[starts[later + 1]] if later + 1 < len(lengths) else 0.0
            delta = merged[later] + gamma * following - values[starts[later]]
            advantage += (gamma * gae_lambda) ** (later - k) * delta
        advantages += [advantage] * lengths[k]
    return advantages


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("searched", [None, ImitateSuccesses()])
def test_rollout_scaled_equals_a_loop(seed: int, searched: ImitateSuccesses | None):
    """(R - mean of the group) / (std of all compared returns + 1e-6); overridden members count nowhere."""
    groups = ragged_groups(seed, searched=True)
    parts = {} if searched is None else {"searched": searched}
    objective = GRPO(advantage=RolloutScaled(), aggregation=TokenMean(), **parts)
    credits = objective.credit(groups, [[zero_estimates(t) for t in group.trajectories] for group in groups])
    compared = [[searched is None or t.origin is Origin.SAMPLED for t in group.trajectories] for group in groups]
    pooled = [
        t.episode_return
        for group, flags in zip(groups, compared, strict=True)
        for t, flag in zip(group.trajectories, flags, strict=True)
        if flag
    ]
    mean = math.fsum(pooled) / len(pooled)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in pooled) / (len(pooled) - 1))
    for group, flags, own in zip(groups, compared, credits, strict=True):
        returns = [t.episode_return for t, flag in zip(group.trajectories, flags, strict=True) if flag]
        if len(returns) < 2:
            continue
        centre = math.fsum(returns) / len(returns)
        for t, flag, credit in zip(group.trajectories, flags, own, strict=True):
            if flag:
                expected = (t.episode_return - centre) / (std + 1e-6)
                assert credit.advantages.tolist() == pytest.approx([expected] * t.trained_tokens, abs=1e-6)


def test_rollout_scaled_hands_on_what_its_estimator_needs():
    assert RolloutScaled(TokenGAE(bootstrap_truncated=True)).needs == TokenGAE(bootstrap_truncated=True).needs
    assert (RolloutScaled().minimum_compared, RolloutScaled(TokenGAE()).minimum_compared) == (2, 1)
    assert PPO(advantage=RolloutScaled(TokenGAE()), kl=K3(0.1)).needs.values


def test_rollouts_without_spread_are_finite():
    one = trajectory_of([(2, 1.0)])
    for group in (group_of(one), group_of(one, one)):
        estimates = [[zero_estimates(t) for t in group.trajectories]]
        (own,) = GRPO(advantage=RolloutScaled()).credit([group], estimates)
        assert all(credit.advantages.tolist() == [0.0, 0.0] for credit in own)
        (own,) = PPO(advantage=RolloutScaled(TokenGAE())).credit([group], estimates)
        assert all(credit.value_targets.tolist() == [1.0, 1.0] for credit in own)
    assert GRPO(advantage=RolloutScaled()).credit([], []) == []


def test_scaled_rewards_must_reach_the_estimator():
    with pytest.raises(ConfigError, match=r"RolloutScaled\.estimator is SuccessSign.*looks at success alone"):
        RolloutScaled(SuccessSign())
