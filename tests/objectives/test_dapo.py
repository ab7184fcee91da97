"""DAPO, the mask of overlong trajectories and the format penalty, against plain loops over the cited equations."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from ragged import group_of, ragged_groups, trajectory_of, turn_of, zero_estimates
from torch import Tensor

from tsr_lightning.batching.tensors import Credit, Outputs, Targets, columns
from tsr_lightning.objectives import (
    DAPO,
    GRPO,
    PPO,
    ImitateSuccesses,
    Objective,
    OverlongPenalty,
    PolicyGradient,
    SequenceMean,
    TokenMean,
    TurnGAE,
    Unchanged,
)
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory

LOW, HIGH = 0.2, 0.28


def credit_of(objective: Objective, groups: Sequence[Group]) -> list[list[Credit]]:
    return objective.credit(groups, [[zero_estimates(t) for t in group.trajectories] for group in groups])


def loss_of(objective: Objective, credits: Sequence[Credit], logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Of one optimizer step on all trajectories. Both [N], float64."""
    divisor = sum(float(credit.normalizers.double().sum()) for credit in credits)
    tensors = {field.name: torch.zeros_like(old_logprobs) for field in columns(Targets)}
    tensors |= {
        "old_logprobs": old_logprobs,
        "advantages": torch.cat([credit.advantages for credit in credits]).double(),
        "weights": torch.cat([credit.weights for credit in credits]).double() / divisor,
    }
    zeros = torch.zeros_like(logprobs)
    return objective.loss(Targets(**tensors), Outputs(logprobs, zeros, zeros)).total


def cut(trajectory: Trajectory) -> bool:
    return trajectory.ended is Ended.TOKEN_LIMIT or not trajectory.turns[-1].finished


def dapo_by_loop(groups: Sequence[Group], logprobs: Tensor, old_logprobs: Tensor, limit: int, buffer: int) -> Tensor:
    """Equations 8, 9 and 13 of https://arxiv.org/abs/2503.14476, with the loss of overlong samples masked."""
    total, tokens, position = torch.zeros((), dtype=torch.float64), 0, 0
    for group in groups:
        returns = []
        for trajectory in group.trajectories:
            length = sum(len(turn.response) for turn in trajectory.turns)
            value = math.fsum(turn.reward for turn in trajectory.turns)
            if limit - buffer < length <= limit:
                value += ((limit - buffer) - length) / buffer
            elif length > limit:
                value -= 1.0
            returns.append(value)
        mean = math.fsum(returns) / len(returns)
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in returns) / (len(returns) - 1))
        for trajectory, value in zip(group.trajectories, returns, strict=True):
            advantage = (value - mean) / (std + 1e-6)
            for turn in trajectory.turns:
                for _ in turn.response:
                    if not cut(trajectory):
                        ratio = torch.exp(logprobs[position] - old_logprobs[position])
                        total = total + torch.min(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
                        tokens += 1
                    position += 1
    return -total / tokens


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_equal_the_equations(seed: int):
    groups = ragged_groups(seed)
    objective = DAPO(shaping=[OverlongPenalty(limit=12, buffer=6)])
    credits = [credit for group in credit_of(objective, groups) for credit in group]
    trajectories = [t for group in groups for t in group.trajectories]
    assert 0 < sum(map(cut, trajectories)) < len(trajectories)
    generator = torch.Generator().manual_seed(seed)
    n = sum(t.trained_tokens for t in trajectories)
    old = -3 * torch.rand(n, generator=generator, dtype=torch.float64)
    now = (old + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)).requires_grad_()
    ours, theirs = loss_of(objective, credits, now, old), dapo_by_loop(groups, now, old, limit=12, buffer=6)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, now)[0] for loss in (ours, theirs)), rtol=0, atol=1e-6, msg=str
    )


def test_the_preset_holds_the_papers_settings():
    assert DAPO() == replace(DAPO(), aggregation=TokenMean(), kl=None, whiten=False, shaping=[], searched=Unchanged())
    assert (DAPO().surrogate.low, DAPO().surrogate.high, DAPO().advantage.divide_by_std) == (0.2, 0.28, True)
    assert (DAPO().mask_truncated, DAPO().entropy_coefficient, DAPO().minimum_compared) == (True, 0.0, 2)


# -- the mask ----------------------------------------------------------------------------------------------------------

MASKABLE = [GRPO(), GRPO(aggregation=TokenMean()), PPO(), PPO(advantage=TurnGAE(), aggregation=SequenceMean())]


@pytest.mark.parametrize("objective", MASKABLE)
@pytest.mark.parametrize("searched", [Unchanged(), ImitateSuccesses()])
def test_a_mask_changes_the_weights_of_overlong_trajectories_alone(objective: PolicyGradient, searched):
    """Baseline, whitening and the critic's part stay those of the objective without it."""
    objective = replace(objective, searched=searched)
    masked = replace(objective, mask_truncated=True)
    groups = ragged_groups(3, searched=True)
    for group, before, after in zip(groups, credit_of(objective, groups), credit_of(masked, groups), strict=True):
        for trajectory, old, new in zip(group.trajectories, before, after, strict=True):
            assert torch.equal(old.value_targets, new.value_targets)
            assert torch.equal(old.value_weights, new.value_weights)
            if cut(trajectory):
                assert new.weights.sum() == new.normalizers.sum() == 0
                assert masked.masks(trajectory)
                assert not masked.imitates(trajectory)
            else:
                assert all(torch.equal(getattr(old, f.name), getattr(new, f.name)) for f in columns(Credit))
                assert not masked.masks(trajectory)


def test_what_counts_as_overlong():
    """A limit of the environment is part of the task, as is a response that was cut before the last turn."""
    ended = trajectory_of([(2, 0.0)], ended=Ended.TURN_LIMIT)
    cut_early = trajectory_of([turn_of(2, 0.0, finished=False), turn_of(1, 0.0)])
    cut_last = trajectory_of([turn_of(1, 0.0), turn_of(2, 0.0, finished=False)])
    no_room = trajectory_of([(2, 0.0)], ended=Ended.TOKEN_LIMIT)
    assert [t.overlong for t in (ended, cut_early, cut_last, no_room)] == [False, False, True, True]
    assert not any(GRPO().masks(t) for t in (ended, cut_early, cut_last, no_room))


# -- the format penalty ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [*MASKABLE, DAPO()])
@pytest.mark.parametrize("searched", [Unchanged(), ImitateSuccesses()])
def test_a_format_penalty_lowers_the_advantage_of_unreadable_turns_alone(objective: PolicyGradient, searched):
    objective = replace(objective, searched=searched)
    penalised = replace(objective, format_penalty=0.25)
    groups = ragged_groups(4, searched=True)
    unreadable = 0
    for group, before, after in zip(groups, credit_of(objective, groups), credit_of(penalised, groups), strict=True):
        for trajectory, old, new in zip(group.trajectories, before, after, strict=True):
            expected = old.advantages.tolist()
            position = 0
            for turn in trajectory.turns:
                for _ in turn.response:
                    if not turn.valid:
                        expected[position] -= 0.25
                        unreadable += 1
                    position += 1
            assert new.advantages.tolist() == pytest.approx(expected, abs=1e-6)
            others = [f.name for f in columns(Credit) if f.name != "advantages"]
            assert all(torch.equal(getattr(old, name), getattr(new, name)) for name in others)
            assert penalised.return_of(trajectory) == objective.return_of(trajectory)
            assert penalised.imitates(trajectory) == objective.imitates(trajectory)
    assert unreadable > 10


def test_a_format_penalty_by_hand():
    # Returns 1 and 0, centred 0.5 and -0.5; the second turn of the first could not be read.
    first = trajectory_of([turn_of(1, 0.0), turn_of(2, 1.0, valid=False)])
    second = trajectory_of([(1, 0.0)])
    objective = GRPO(advantage=replace(GRPO().advantage, divide_by_std=False), format_penalty=0.75)
    ((own, other),) = credit_of(objective, [group_of(first, second)])
    assert own.advantages.tolist() == [0.5, -0.25, -0.25]
    assert other.advantages.tolist() == [-0.5]


def test_an_imitated_trajectory_is_penalised_too():
    searched = trajectory_of(
        [turn_of(1, 0.0, valid=False), turn_of(1, 1.0)], origin=Origin.SEARCHED, ended=Ended.SUCCEEDED
    )
    ((own,),) = credit_of(GRPO(searched=ImitateSuccesses(), format_penalty=0.25), [group_of(searched)])
    assert own.advantages.tolist() == [0.75, 1.0]


def test_turns_without_tokens_take_no_penalty():
    draws = random.Random(0)
    lengths = [draws.choice([0, 1, 3]) for _ in range(8)]
    one = trajectory_of([turn_of(1, 0.0), *(turn_of(n, 0.0, valid=k % 2 == 0) for k, n in enumerate(lengths))])
    ((own, _),) = credit_of(GRPO(format_penalty=1.0), [group_of(one, one)])
    assert own.advantages.tolist() == [0.0] + [-float(k % 2) for k, n in enumerate(lengths) for _ in range(n)]
