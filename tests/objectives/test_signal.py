"""Which groups have signal: those on which the objective's policy loss has a gradient."""

from dataclasses import replace

import pytest
import torch
from ragged import group_of, ragged_groups, trajectory_of, zero_estimates

from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.objectives import (
    DAPO,
    GRPO,
    PPO,
    RAFT,
    SFT,
    BilevelGAE,
    Discount,
    GiGPO,
    GreedyBaseline,
    GroupInGroup,
    GroupNormalised,
    ImitateSuccesses,
    K1Reward,
    LinearSchedule,
    Objective,
    OverlongPenalty,
    ReinforcePlusPlus,
    ReturnToGo,
    RolloutScaled,
    Supervised,
    TokenGAE,
    TurnGAE,
)
from tsr_lightning.objectives.signal import Compared, compared_returns, has_signal, outcomes_teach
from tsr_lightning.trajectory import Ended, Origin, Trajectory

OBJECTIVES = [
    GRPO(),
    GRPO(searched=ImitateSuccesses()),
    GRPO(advantage=GroupNormalised(divide_by_std=False), shaping=[OverlongPenalty(10, 5)]),
    DAPO(),
    DAPO(searched=ImitateSuccesses()),
    RAFT(),
    SFT(),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_a_group_has_signal_where_an_advantage_with_weight_is_not_zero(objective: Objective):
    groups = [group for seed in range(20) for group in ragged_groups(seed, searched=True, size=3)]
    found = []
    for group in groups:
        (credits,) = objective.credit([group], [[zero_estimates(t) for t in group.trajectories]])
        has_gradient = any((credit.weights * credit.advantages).abs().max() > 1e-5 for credit in credits)
        found.append(has_signal(group, objective))
        assert found[-1] == has_gradient
    assert found.count(True) > 5
    assert found.count(False) > 2 or objective == SFT()


def test_returns_are_compared_after_shaping():
    short, long = trajectory_of([(2, 1.0)]), trajectory_of([(9, 1.0)])
    group = group_of(short, long)
    assert not has_signal(group, GRPO())
    shaped = GRPO(shaping=[OverlongPenalty(10, 4)])
    assert compared_returns(group, shaped) == [1.0, 0.25]
    assert Compared.of(group, shaped).std == 0.375
    assert has_signal(group, shaped)

    early, late = trajectory_of([(1, 1.0), (1, 0.0)]), trajectory_of([(1, 0.0), (1, 1.0)])
    assert not has_signal(group_of(early, late), GRPO())
    assert has_signal(group_of(early, late), GRPO(shaping=[Discount(0.9)]))


def test_a_group_of_which_all_are_masked_has_no_signal():
    whole, cut = trajectory_of([(1, 1.0)]), trajectory_of([(1, 0.0)], ended=Ended.TOKEN_LIMIT)
    assert has_signal(group_of(whole, cut), DAPO())
    other = trajectory_of([(1, 1.0)], ended=Ended.TOKEN_LIMIT)
    assert not has_signal(group_of(other, cut), DAPO())
    assert has_signal(group_of(other, cut), GRPO())
    (credits,) = DAPO().credit([group_of(other, cut)], [[zero_estimates(other), zero_estimates(cut)]])
    assert torch.cat([credit.weights for credit in credits]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("objective", [PPO(), ReinforcePlusPlus()], ids=str)
def test_a_lone_trajectory_has_signal_where_the_baseline_is_not_the_group(objective: Objective):
    lone = group_of(trajectory_of([(2, 1.0)]))
    assert has_signal(lone, objective)
    assert not has_signal(lone, GRPO())
    assert not has_signal(
        group_of(trajectory_of([(2, 0.0)], ended=Ended.TOKEN_LIMIT)), replace(objective, mask_truncated=True)
    )


def test_a_demonstration_has_signal_while_its_term_has_a_coefficient():
    objective = GRPO(supervised=Supervised(LinearSchedule(1.0, 0.0, 4)))
    demonstrated = group_of(replace(trajectory_of([(2, 0.0)]), origin=Origin.DEMONSTRATED))
    assert has_signal(demonstrated, objective.at(3))
    assert not has_signal(demonstrated, objective.at(4))


@pytest.mark.parametrize("objective", [PPO(), ReinforcePlusPlus()], ids=str)
def test_one_failure_and_three_are_treated_alike_where_the_baseline_is_not_the_group(objective: Objective):
    """Beside a group with a success the advantages of failures are below 0 in a group of three as in one of one."""
    failures = [trajectory_of([(2, 0.0)]) for _ in range(3)]
    success = trajectory_of([(2, 1.0)], ended=Ended.SUCCEEDED)
    for group in (group_of(failures[0]), group_of(*failures)):
        assert has_signal(group, objective)
        assert not has_signal(group, GRPO())
        both = [group, group_of(success)]
        credits, _ = objective.credit(both, [[valued(each) for each in one.trajectories] for one in both])
        assert all((credit.weights * credit.advantages < -0.1).all() for credit in credits)


def valued(trajectory: Trajectory) -> Estimates:
    """The critic expects a return of 0.5 everywhere."""
    zeros = torch.zeros(trajectory.trained_tokens)
    return Estimates(zeros, zeros + 0.5, zeros, 0.0)


@pytest.mark.parametrize("objective", [PPO(), ReinforcePlusPlus()], ids=str)
def test_all_of_a_masked_group_has_no_signal_under_any_baseline(objective: Objective):
    cut = [trajectory_of([(2, 0.0)], ended=Ended.TOKEN_LIMIT) for _ in range(3)]
    assert not has_signal(group_of(*cut), replace(objective, mask_truncated=True))


def test_equal_samples_teach_where_greedy_play_fares_otherwise():
    """Their advantage is -1, also where a penalty in the rewards asks for a look at outcomes."""
    samples = [trajectory_of([(2, 0.0)]), trajectory_of([(2, 0.0)])]
    better, equal = (trajectory_of([(2, reward)], origin=Origin.GREEDY) for reward in (1.0, 0.0))
    objective = GRPO(advantage=GreedyBaseline(), kl=K1Reward(0.001))
    assert outcomes_teach([group_of(*samples, better), group_of(*samples, equal)], objective) == [True, False]
    assert outcomes_teach([group_of(*samples)], objective) == [False]  # it lost its greedy play
    for baseline, signal in ((better, True), (equal, False)):  # and so says dynamic sampling
        assert has_signal(group_of(*samples, baseline), objective) == signal
    assert not has_signal(group_of(*samples), objective)


@pytest.mark.parametrize(
    "objective",
    [
        PPO(advantage=BilevelGAE()),
        PPO(advantage=BilevelGAE(gamma=0.9, turn_gamma=1.0)),
        PPO(advantage=TurnGAE(gamma=0.9)),
        PPO(advantage=TokenGAE(gamma=0.9)),
        ReinforcePlusPlus(advantage=ReturnToGo(gamma=0.9)),
        ReinforcePlusPlus(advantage=RolloutScaled(ReturnToGo(gamma=0.9))),
        GiGPO(kl=K1Reward(0.001)),
    ],
    ids=str,
)
def test_equal_returns_teach_where_their_discount_differs(objective: Objective):
    """A success after fewer turns or tokens is worth more, and failures are worth the same."""
    ways = ([(1, 1.0)], [(3, 0.0), (2, 0.0), (1, 1.0)])
    soon, late = (replace(trajectory_of(turns), state_keys=("a", "b", "c")[: len(turns)]) for turns in ways)
    lost = [replace(each, turns=tuple(replace(turn, reward=0.0) for turn in each.turns)) for each in (soon, late)]
    credits = objective.credit([group_of(soon, late)], [[zero_estimates(soon), zero_estimates(late)]])[0]
    assert max(float(credit.advantages.max()) for credit in credits) > 0.04
    assert outcomes_teach([group_of(soon, late)], objective) == [True]
    assert outcomes_teach([group_of(*lost)], objective) == [False]
    assert outcomes_teach([group_of(soon, soon)], objective) == [False]
    assert outcomes_teach([group_of(soon, late)], PPO()) == [False]


def test_samples_that_all_differ_from_greedy_play_are_not_uniform():
    greedy = replace(trajectory_of([(1, 1.0)]), origin=Origin.GREEDY)
    lost, won = trajectory_of([(1, 0.0)]), trajectory_of([(1, 1.0)])
    remax = GRPO(advantage=GreedyBaseline())
    cases = [([lost, lost], 1.0), ([lost], 1.0), ([won, won], 0.0), ([won, lost, lost, won], 0.5**0.5)]
    for samples, spread in cases:
        found = Compared.of(group_of(*samples, greedy), remax)
        assert (found.is_uniform(), found.has_signal()) == (spread == 0, spread > 0)
        assert found.std == pytest.approx(spread)
    near = Compared.of(group_of(trajectory_of([(1, 0.9)]), trajectory_of([(1, 0.9)]), greedy), remax)
    assert (near.is_uniform(), near.is_uniform(0.2), near.has_signal(0.2)) == (False, True, False)


def test_a_group_of_equal_returns_has_signal_where_states_credit_them():
    soon = replace(trajectory_of([(1, 1.0)]), state_keys=("a",))
    late = replace(trajectory_of([(1, 0.0), (1, 1.0)]), state_keys=("a", "b"))
    assert has_signal(group_of(soon, late), GiGPO())
    assert not has_signal(group_of(soon, soon), GiGPO())
    assert not has_signal(group_of(soon, late), GiGPO(advantage=GroupInGroup(gamma=1.0)))
    assert Compared.of(
        group_of(soon, late), GiGPO()
    ).is_uniform()  # for the filter, which goes by the spread of returns
