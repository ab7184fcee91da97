"""The supervised term against a plain loop, alone and beside a policy gradient, through whole optimizer steps."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import training_sequences, with_credit
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    SFT,
    Aggregation,
    Constant,
    ConstantSchedule,
    CosineSchedule,
    Estimates,
    LinearSchedule,
    Objective,
    Outputs,
    PolicyGradient,
    SequenceMean,
    Supervised,
    TokenMean,
)
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory, Turn

AGGREGATIONS = [TokenMean(), SequenceMean(), Constant(7)]


def trajectory(origin: Origin, lengths: Sequence[int], rewards: Sequence[float], first: int) -> Trajectory:
    """Single turns of these lengths, whose ids are all different from `first` on."""
    turns = []
    for length, reward in zip(lengths, rewards, strict=True):
        response = tuple(range(first, first + length))
        logprobs = (-1.0,) * length
        first += length
        turns.append(Turn((1, 2), response, logprobs, True, (), "", reward, valid=True, effective=True, action=""))
    return Trajectory(
        0, 0, "Sample", origin, tuple(turns), Ended.SUCCEEDED if rewards[-1] > 0 else Ended.FAILED, **NO_END
    )


NO_END = {"final_prompt": (), "final_messages": ()}


def rollout(seed: int = 0) -> list[Group]:
    """Ragged groups of samples, searched and demonstrated trajectories; one of equal returns, and one of demonstrations
    alone."""
    draw = random.Random(seed)
    D, S, X = Origin.DEMONSTRATED, Origin.SAMPLED, Origin.SEARCHED
    groups, first = [], 3
    for origins in ((S, S, D, S), (S, S, S), (D,), (S, X, D, D, S), (D, D)):
        members = []
        for origin in origins:
            lengths = [draw.choice((1, 1, 2, 5)) for _ in range(draw.randint(1, 4))]
            rewards = [draw.choice((0.0, 0.0, 1.0, -0.1)) if len(groups) != 1 else 0.5 / len(lengths) for _ in lengths]
            members.append(trajectory(origin, lengths, rewards, first))
            first += sum(lengths)
        groups.append(Group(len(groups), tuple(members)))
    return groups


def only(groups: Sequence[Group], *, demonstrations: bool) -> list[Group]:
    """The groups with their demonstrations alone, or without them."""
    parts = [
        replace(group, trajectories=tuple(t for t in group.trajectories if is_demonstration(t) == demonstrations))
        for group in groups
    ]
    return [group for group in parts if group.trajectories]


def is_demonstration(trajectory: Trajectory) -> bool:
    return trajectory.origin is Origin.DEMONSTRATED


def old_logprobs(ids: Tensor) -> Tensor:
    """Different for every id, so that a token is found again in a micro-batch."""
    return -ids.float() / 64


def steps_of(
    objective: Objective, groups: Sequence[Group], updates: Updates, rank: int, ranks: int
) -> list[list[Batch]]:
    estimates = [[estimated(t) for t in group.trajectories] for group in groups]
    credits = objective.credit(groups, estimates)
    sequences = [
        sequence
        for group, estimated_group, credited in zip(groups, estimates, credits, strict=True)
        for t, estimate, credit in zip(group.trajectories, estimated_group, credited, strict=True)
        for sequence in with_credit(training_sequences(t), estimate, credit)
    ]
    return schedule(sequences, updates, Key(3), rank=rank, ranks=ranks)


def estimated(trajectory: Trajectory) -> Estimates:
    ids = torch.tensor([token for turn in trajectory.turns for token in turn.response])
    return Estimates(old_logprobs(ids), torch.sin(ids.float()), torch.zeros(len(ids)), 0.0)


def logprobs_now() -> Tensor:
    """[ids] the log-probability of each id now, to be differentiated."""
    ids = torch.arange(256)
    return (old_logprobs(ids) + 0.1 * torch.sin(7 * ids.double())).requires_grad_()


def first_step(
    objective: Objective, groups: Sequence[Group], *, minibatches: int = 1, micro_batch_tokens: int = 9, ranks: int = 1
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """The first optimizer step in float64: its loss, the loss's gradient [ids] and the statistics, summed over
    micro-batches and ranks."""
    logprobs = logprobs_now()
    total, stats = torch.zeros((), dtype=torch.float64), dict[str, float]()
    updates = Updates(minibatches=minibatches, micro_batch_tokens=micro_batch_tokens)
    for rank in range(ranks):
        for batch in steps_of(objective, groups, updates, rank, ranks)[0]:
            targets = batch.targets.map(Tensor.double)
            ids = (-64 * targets.old_logprobs).round().long()
            values = torch.cos(ids.double())
            loss = objective.loss(targets, Outputs(logprobs[ids], torch.zeros_like(values), values))
            total = total + loss.total
            for name, value in loss.stats.items():
                stats[name] = stats.get(name, 0.0) + float(value)
    total.backward()
    assert logprobs.grad is not None
    return total.detach(), logprobs.grad, stats


def reference(groups: Sequence[Group], aggregation: Aggregation, coefficient: float) -> tuple[float, Tensor]:
    """-coefficient * sum(weight * log pi) / sum(weight) over the tokens of the demonstrations, in a plain loop."""
    logprobs = logprobs_now().detach()
    weights = torch.zeros(256, dtype=torch.float64)
    for group in groups:
        for each in group.trajectories:
            if is_demonstration(each):
                ids = [token for turn in each.turns for token in turn.response]
                for token in ids:
                    weights[token] = 1 / len(ids) if isinstance(aggregation, SequenceMean) else 1.0
    loss = -coefficient * sum(float(weights[i] * logprobs[i]) for i in range(256)) / float(weights.sum())
    return loss, -coefficient * weights / weights.sum()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=repr)
def test_the_term_equals_a_plain_loop(aggregation: Aggregation, ranks: int):
    demonstrations = only(rollout(), demonstrations=True)
    objective = GRPO(aggregation=aggregation, supervised=Supervised(ConstantSchedule(0.3)))
    loss, gradient, stats = first_step(objective, demonstrations, ranks=ranks)
    expected, expected_gradient = reference(demonstrations, aggregation, 0.3)
    assert float(loss) == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-6)
    assert stats["supervised_loss"] == pytest.approx(expected / 0.3, abs=1e-6)
    assert stats["supervised_weight"] == pytest.approx(1)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", [GRPO, PPO])
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=repr)
def test_the_gradient_is_the_sum_of_both_alone(kind: type[PolicyGradient], aggregation: Aggregation, ranks: int):
    groups = rollout()
    plain, weight = kind(aggregation=aggregation), 0.3
    both = replace(plain, supervised=Supervised(ConstantSchedule(weight)))
    loss, gradient, stats = first_step(both, groups, ranks=ranks)
    sampled_loss, sampled, plain_stats = first_step(plain, only(groups, demonstrations=False), ranks=ranks)
    sft = SFT(aggregation=TokenMean() if isinstance(aggregation, Constant) else aggregation)
    sft_loss, supervised, _ = first_step(sft, only(groups, demonstrations=True), ranks=ranks)
    assert supervised.abs().max() > 1e-3
    assert sampled.abs().max() > 1e-3
    torch.testing.assert_close(gradient, sampled + weight * supervised, rtol=0, atol=1e-6)
    torch.testing.assert_close(loss, sampled_loss + weight * sft_loss, rtol=0, atol=1e-6)
    for name, value in plain_stats.items():  # a demonstration is in none of the other statistics
        assert stats[name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize("kind", [GRPO, PPO])
def test_weight_0_equals_without(kind: type[PolicyGradient]):
    groups = rollout()
    off = kind(supervised=Supervised(LinearSchedule(start=1.0, end=0.0, epochs=4))).at(4)
    loss, gradient, stats = first_step(off, groups, minibatches=2)
    without_loss, without, _ = first_step(kind(), only(groups, demonstrations=False), minibatches=2)
    assert torch.equal(gradient, without)
    assert torch.equal(loss, without_loss)
    assert stats["supervised_weight"] == 0


def test_the_term_is_0_where_a_step_has_no_demonstration():
    groups = only(rollout(), demonstrations=False)
    loss, gradient, stats = first_step(GRPO(supervised=Supervised()), groups)
    plain_loss, plain, _ = first_step(GRPO(), groups)
    assert torch.equal(gradient, plain)
    assert torch.equal(loss, plain_loss)
    assert (stats["supervised_loss"], stats["supervised_weight"]) == (0, 0)


@pytest.mark.parametrize("kind", [GRPO, PPO])
def test_demonstrations_change_no_other_credit_and_train_no_critic(kind: type[PolicyGradient]):
    groups = rollout()
    objective = kind(supervised=Supervised())

    def credited(groups: Sequence[Group], demonstrations: bool) -> list:
        credits = objective.credit(groups, [[estimated(t) for t in group.trajectories] for group in groups])
        pairs = zip(groups, credits, strict=True)
        members = [pair for group, own in pairs for pair in zip(group.trajectories, own, strict=True)]
        return [credit for t, credit in members if is_demonstration(t) == demonstrations]

    sampled, alone = credited(groups, False), credited(only(groups, demonstrations=False), False)
    for mine, theirs in zip(sampled, alone, strict=True):
        torch.testing.assert_close(mine.advantages, theirs.advantages)
        assert torch.equal(mine.weights, theirs.weights)
        assert not mine.supervised_weights.any()
    for credit in credited(groups, True):
        assert not any(column.any() for column in (credit.weights, credit.normalizers, credit.value_weights))
        assert credit.supervised_weights.all()


def test_an_objective_declares_its_demonstrations():
    [demonstration] = only(rollout(), demonstrations=True)[1].trajectories
    with_term, without = GRPO(supervised=Supervised()), GRPO()
    assert (with_term.takes_demonstrations, with_term.needs_demonstrations) == (True, True)
    assert (without.takes_demonstrations, without.needs_demonstrations) == (False, False)
    assert (with_term.imitates(demonstration), without.imitates(demonstration)) == (True, False)
    assert not with_term.compares(Origin.DEMONSTRATED)


def test_schedules_by_hand():
    linear, cosine = LinearSchedule(1.0, 0.2, epochs=4), CosineSchedule(1.0, 0.2, epochs=4)
    assert [linear(epoch) for epoch in range(6)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    # 0.2 + 0.8 * (1 + cos(pi * epoch / 4)) / 2, with cos(pi / 4) = sqrt(1 / 2)
    half = 0.4 * math.sqrt(0.5)
    assert [cosine(epoch) for epoch in range(6)] == pytest.approx([1.0, 0.6 + half, 0.6, 0.6 - half, 0.2, 0.2])
    assert [ConstantSchedule(0.3)(epoch) for epoch in (0, 99)] == [0.3, 0.3]


def test_an_objective_follows_its_schedule():
    demonstrations = only(rollout(), demonstrations=True)
    objective = GRPO(supervised=Supervised(LinearSchedule(1.0, 0.5, epochs=2)))
    gradients = [first_step(objective.at(epoch), demonstrations)[1] for epoch in range(4)]
    for gradient, weight in zip(gradients, (1.0, 0.75, 0.5, 0.5), strict=True):
        torch.testing.assert_close(gradient, weight * gradients[0])
    assert type(objective.at(3)) is GRPO
    assert GRPO().at(3) == GRPO()
    assert SFT().at(3) == SFT()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConstantSchedule(-1.0), r"ConstantSchedule\.value is -1\.0: .*use 0"),
        (lambda: LinearSchedule(start=float("nan")), r"LinearSchedule\.start is nan: "),
        (lambda: CosineSchedule(end=-0.1), r"CosineSchedule\.end is -0\.1: "),
        (lambda: LinearSchedule(epochs=0), r"LinearSchedule\.epochs is 0: give 1 or more, or use ConstantSchedule"),
    ],
)
def test_a_bad_argument_is_refused(build, message: str):
    with pytest.raises(ConfigError, match=message):
        build()
