"""Credit of whole trajectories: aggregation, groups, and searched trajectories."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from ragged import group_of as group
from ragged import trajectory_of
from ragged import turn_of as turn
from torch import Tensor

from tsr_lightning.batching.tensors import columns
from tsr_lightning.objectives import (
    GRPO,
    K3,
    PPO,
    RAFT,
    SFT,
    AdvantageEstimator,
    Constant,
    Credit,
    Estimates,
    GreedyBaseline,
    GroupNormalised,
    ImitateSuccesses,
    K1Reward,
    Needs,
    Objective,
    PolicyGradient,
    SequenceMean,
    TokenGAE,
    TokenMean,
    TurnGAE,
    Unchanged,
    outcome_advantages,
)
from tsr_lightning.objectives.credit import restricted_to_uncertain
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory

CENTRED = GroupNormalised(divide_by_std=False)
ENDED = {True: Ended.SUCCEEDED, False: Ended.FAILED}
ARRAYS = tuple(field.name for field in columns(Credit))


def trajectory(*turns: tuple[int, float], **arguments: Any) -> Trajectory:
    """From (trained tokens, reward) of each turn."""
    return trajectory_of(turns, **arguments)


def estimates(of: Trajectory, values: list[float] | None = None, final_value: float = 0.0) -> Estimates:
    n = of.trained_tokens
    return Estimates(
        torch.zeros(n), torch.zeros(n) if values is None else torch.tensor(values), torch.zeros(n), final_value
    )


def credit(objective: Objective, *groups: Group) -> list[list[Credit]]:
    return objective.credit(groups, [[estimates(each) for each in one.trajectories] for one in groups])


def close(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-5)


MIXED = group(
    trajectory((2, 1.0)),
    trajectory((1, 0.0), (2, 3.0)),
    trajectory((2, 50.0), origin=Origin.SEARCHED, ended=Ended.SUCCEEDED),
    trajectory((1, -50.0), origin=Origin.SEARCHED),
)


def test_aggregations_by_hand():
    # A trajectory of 4 trained tokens.
    assert TokenMean().weighting(4) == (1.0, 1.0)
    assert SequenceMean().weighting(4) == (0.25, 0.25)
    assert Constant(10).weighting(4) == (0.1, 0.25)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Trajectories of 1 and 3 tokens whose terms are 8 and 2, 2, 2.
        (TokenMean(), (8 + 6) / 4),
        (SequenceMean(), (8 + 2) / 2),
        (Constant(4), (8 / 4 + 6 / 4) / 2),
    ],
)
def test_a_step_is_the_weighted_sum_over_the_sum_of_normalizers(aggregation, expected: float):
    ((short, long),) = credit(SFT(aggregation=aggregation), group(trajectory((1, 0.0)), trajectory((1, 0.0), (2, 0.0))))
    summed = (short.weights * 8).sum() + (long.weights * 2).sum()
    assert (summed / (short.normalizers.sum() + long.normalizers.sum())).item() == pytest.approx(expected)


def test_ppo_by_hand():
    # Turns of 2 and 1 tokens with rewards 1 and 10, values 1, 2, 3: returns 11, 11, 10 and advantages 10, 9, 7.
    one = trajectory((2, 1.0), (1, 10.0))
    ((own,),) = PPO(whiten=False).credit([group(one)], [[estimates(one, [1.0, 2.0, 3.0])]])
    close(own.advantages, [10.0, 9.0, 7.0])
    close(own.value_targets, [11.0, 11.0, 10.0])
    close(own.weights, [1.0, 1.0, 1.0])
    close(own.value_weights, [1.0, 1.0, 1.0])
    # Per turn: 1 + 10 - 1 = 10 and 10 - 3 = 7, shared by their tokens.
    ((shared,),) = PPO(whiten=False, advantage=TurnGAE()).credit([group(one)], [[estimates(one, [1.0, 2.0, 3.0])]])
    close(shared.advantages, [10.0, 10.0, 7.0])
    close(shared.value_targets, [11.0, 11.0, 10.0])


@pytest.mark.parametrize(
    ("bootstrap", "truncated", "expected"),
    [(False, False, 1.0), (False, True, 1.0), (True, False, 1.0), (True, True, 1.0 + 0.5 * 6.0)],
)
def test_bootstraps_only_truncated_trajectories_and_only_if_configured(
    bootstrap: bool, truncated: bool, expected: float
):
    one = trajectory((1, 1.0), ended=Ended.TURN_LIMIT if truncated else Ended.FAILED)
    objective = PPO(whiten=False, advantage=TokenGAE(gamma=0.5, bootstrap_truncated=bootstrap))
    ((own,),) = objective.credit([group(one)], [[estimates(one, final_value=6.0)]])
    close(own.value_targets, [expected])


def test_ppo_whitens_over_the_whole_rollout():
    # Two groups of one trajectory of one token, returns 1 and 5: mean 3, deviation 2. The targets are not whitened.
    (((low,), (high,))) = credit(PPO(), group(trajectory((1, 1.0))), group(trajectory((1, 5.0))))
    close(torch.cat([low.advantages, high.advantages]), [-1.0, 1.0])
    close(torch.cat([low.value_targets, high.value_targets]), [1.0, 5.0])


def test_ppo_whitens_with_the_weights_of_the_loss():
    # Returns 0 (one token) and 4 (three). By token: mean 3, variance (9 + 3 * 1) / 4 = 3. By sequence: mean 2,
    # deviation 2.
    pair = group(trajectory((1, 0.0)), trajectory((3, 4.0)))
    ((low, high),) = credit(PPO(aggregation=TokenMean()), pair)
    close(torch.cat([low.advantages, high.advantages]), [-math.sqrt(3)] + [1 / math.sqrt(3)] * 3)
    ((low, high),) = credit(PPO(aggregation=SequenceMean()), pair)
    close(torch.cat([low.advantages, high.advantages]), [-1.0] + [1.0] * 3)


def test_grpo_by_hand():
    # Returns 1, 3 and 5: mean 3, unbiased deviation sqrt((4 + 0 + 4) / 2) = 2.
    three = group(trajectory((2, 1.0)), trajectory((1, 0.0), (2, 3.0)), trajectory((1, 5.0)))
    ((a, b, c),) = credit(GRPO(), three)
    close(a.advantages, [-1.0, -1.0])
    close(b.advantages, [0.0, 0.0, 0.0])
    close(c.advantages, [1.0])
    ((a, b, c),) = credit(GRPO(advantage=CENTRED), three)
    close(torch.cat([a.advantages, b.advantages, c.advantages]), [-2.0, -2.0, 0.0, 0.0, 0.0, 2.0])
    close(b.value_weights, [0.0, 0.0, 0.0])


def test_grpo_compares_within_a_group():
    (low, high) = credit(
        GRPO(advantage=CENTRED),
        group(trajectory((1, 0.0)), trajectory((1, 1.0))),
        group(trajectory((1, 100.0)), trajectory((1, 102.0))),
    )
    close(torch.cat([each.advantages for each in low]), [-0.5, 0.5])
    close(torch.cat([each.advantages for each in high]), [-1.0, 1.0])


def test_unchanged_compares_searched_trajectories_too():
    # Returns 1, 3, 50, -50: mean 1.
    (mixed,) = credit(GRPO(advantage=CENTRED, aggregation=TokenMean(), searched=Unchanged()), MIXED)
    close(torch.stack([each.advantages[0] for each in mixed]), [0.0, 2.0, 49.0, -51.0])
    assert all(each.weights.min() == 1 for each in mixed)


def test_imitate_successes_with_grpo():
    # The sampled ones are compared with each other alone: 1 and 3 around 2.
    ((a, b, success, failure),) = credit(
        GRPO(advantage=CENTRED, searched=ImitateSuccesses(), aggregation=SequenceMean()),
        MIXED,
    )
    close(a.advantages, [-1.0, -1.0])
    close(b.advantages, [1.0, 1.0, 1.0])
    close(b.weights, [1 / 3, 1 / 3, 1 / 3])
    close(success.advantages, [1.0, 1.0])
    close(success.weights, [0.5, 0.5])
    close(success.normalizers, [0.5, 0.5])
    close(failure.weights, [0.0])
    close(failure.normalizers, [0.0])


def test_imitate_successes_with_ppo():
    # Whitened over the sampled ones alone. Values 0, so advantages are returns: 1, 1, 3, 3, 3, with mean 11 / 5 = 2.2
    # and variance (2 * 1.44 + 3 * 0.64) / 5 = 0.96. The critic trains on the sampled ones.
    ((a, b, success, failure),) = credit(PPO(searched=ImitateSuccesses()), MIXED)
    close(a.advantages, [-1.2 / math.sqrt(0.96)] * 2)
    close(b.advantages, [0.8 / math.sqrt(0.96)] * 3)
    close(success.advantages, [1.0, 1.0])
    close(failure.weights, [0.0])
    close(failure.normalizers, [0.0])
    close(torch.cat([a.value_weights, b.value_weights]), [1.0] * 5)
    close(torch.cat([success.value_weights, failure.value_weights]), [0.0] * 3)


def critic_optimum(*groups: Group) -> float:
    """The constant value that the critic's squared error is least at."""
    credits = [each for own in credit(PPO(searched=ImitateSuccesses()), *groups) for each in own]
    weights = torch.cat([each.value_weights for each in credits])
    return float((weights * torch.cat([each.value_targets for each in credits])).sum() / weights.sum())


def test_a_critic_beside_searches_learns_the_value_of_the_policy():
    """Samples return 0, 0, 0, 1, so the policy's value is 1/4; with a searched success the mean would be 2/5."""
    sampled = [trajectory((1, value)) for value in (0.0, 0.0, 0.0, 1.0)]
    search = trajectory((1, 1.0), origin=Origin.SEARCHED, ended=Ended.SUCCEEDED)
    shown = trajectory((1, 1.0), origin=Origin.DEMONSTRATED, ended=Ended.SUCCEEDED)
    assert critic_optimum(group(*sampled, search, shown)) == pytest.approx(0.25)
    assert critic_optimum(group(*sampled), group(search)) == pytest.approx(0.25)  # over the whole rollout


def test_a_critic_of_searches_alone_learns_what_they_reach():
    searches = [trajectory((1, value), origin=Origin.SEARCHED, ended=ENDED[value > 0]) for value in (0.0, 1.0)]
    assert critic_optimum(group(*searches)) == pytest.approx(0.5)


@pytest.mark.parametrize("objective", [PPO(searched=ImitateSuccesses()), GRPO(searched=ImitateSuccesses())])
def test_a_group_of_searched_failures_has_zero_weight(objective: Objective):
    (failures,) = credit(objective, group(*[trajectory((2, 0.0), origin=Origin.SEARCHED)] * 3))
    assert all(each.normalizers.sum() == each.weights.sum() == 0 for each in failures)
    assert all(getattr(each, name).isfinite().all() for each in failures for name in ARRAYS)


def test_raft_by_hand():
    # Successes of 3 and 2 tokens, one plain and one searched, have weights 1/3 and 1/2 per token; failures, whatever
    # they returned, 0.
    mixed = group(
        trajectory((1, 0.0), (2, 1.0), ended=Ended.SUCCEEDED),
        trajectory((2, 9.0)),
        trajectory((2, -3.0), origin=Origin.SEARCHED, ended=Ended.SUCCEEDED),
        trajectory((1, 9.0), origin=Origin.SEARCHED),
    )
    ((plain, failure, searched, other),) = credit(RAFT(), mixed)
    close(plain.advantages, [1.0] * 3)
    close(plain.weights, [1 / 3] * 3)
    close(plain.normalizers, [1 / 3] * 3)
    close(searched.advantages, [1.0, 1.0])
    close(searched.weights, [0.5, 0.5])
    for left_out in (failure, other):
        assert left_out.weights.sum() == left_out.normalizers.sum() == 0
    assert all(each.value_weights.sum() == 0 for each in (plain, failure, searched, other))


def test_raft_on_searched_trajectories_equals_grpo_with_imitate_successes():
    searched = group(*[dataclasses.replace(each, origin=Origin.SEARCHED) for each in MIXED.trajectories])
    for ours, theirs in zip(
        credit(RAFT(), searched)[0], credit(GRPO(searched=ImitateSuccesses()), searched)[0], strict=True
    ):
        assert all(
            torch.equal(getattr(ours, name) * ours.weights, getattr(theirs, name) * theirs.weights) for name in ARRAYS
        )


@pytest.mark.parametrize(
    "objective", [PPO(), PPO(searched=ImitateSuccesses()), GRPO(), GRPO(searched=ImitateSuccesses()), RAFT(), SFT()]
)
def test_credit_agrees_with_compares_and_imitates(objective: Objective):
    """A return changes the advantage of compared trajectories alone; imitated ones have a positive advantage, and
    those that are neither have weight 0."""
    kinds = [(origin, won) for origin in (Origin.SAMPLED, Origin.SEARCHED) for won in (False, True)]
    members = [trajectory((1, 1.0), origin=origin, ended=ENDED[won]) for origin, won in kinds * 2]
    (before,) = credit(objective, group(*members))
    for i, member in enumerate(members):
        raised = dataclasses.replace(member, turns=(turn(1, 4.0),))
        (after,) = credit(objective, group(*members[:i], raised, *members[i + 1 :]))
        compared, imitated = objective.compares(member.origin), objective.imitates(member)
        assert not (compared and imitated)
        assert (after[i].advantages > before[i].advantages).item() == compared
        assert (before[i].weights > 0).item() == (compared or imitated)
        if imitated:
            assert before[i].advantages.item() == 1


def test_greedy_play_is_a_baseline_that_is_not_trained():
    # Returns 1 and 3 less KL penalties of .5 a token, and 1.5 of greedy play: 1 - 1 - 1.5 and 3 - 1.5 - 1.5.
    greedy = trajectory((2, 1.5), origin=Origin.GREEDY)
    one, lost = group(trajectory((2, 1.0)), trajectory((1, 0.0), (2, 3.0)), greedy), group(trajectory((2, 5.0)))
    own = [
        [dataclasses.replace(estimates(each), logprobs=torch.full((each.trained_tokens,), 0.5)) for each in of]
        for of in (one.trajectories, lost.trajectories)
    ]
    first, second = GRPO(advantage=GreedyBaseline(), kl=K1Reward(1.0)).credit([one, lost], own)
    close(first[0].advantages, [-1.5] * 2)
    close(first[1].advantages, [0.0] * 3)
    assert [bool(each.weights.any()) for each in (*first, *second)] == [True, True, False, False]


def test_the_surrogate_keeps_the_tokens_in_which_the_policy_was_least_sure():
    # Entropies .1 to 1 of the ten tokens with a weight: their .8 quantile lies at .82, between the eighth and the
    # ninth. Those of the searched failure, which has no weight, would have moved it to 2.
    one = group(
        trajectory((4, 1.0)),
        trajectory((1, 0.0), (3, 3.0)),
        trajectory((2, 9.0), origin=Origin.SEARCHED, ended=Ended.SUCCEEDED),
        trajectory((9, 1.0), origin=Origin.SEARCHED),
    )
    entropies = torch.tensor([0.9, 0.1, 0.3, 0.8], dtype=torch.float32)
    given = [entropies, torch.tensor([0.2, 1.0, 0.4, 0.5]), torch.tensor([0.7, 0.6]), torch.full((9,), 2.0)]
    own = [dataclasses.replace(estimates(each), entropies=of) for each, of in zip(one.trajectories, given, strict=True)]
    objective = GRPO(advantage=CENTRED, searched=ImitateSuccesses())
    [everywhere] = objective.credit([one], [own])
    [masked] = dataclasses.replace(objective, top_entropy_quantile=0.2).credit([one], [own])
    close(masked[0].advantages, [-1.0, 0.0, 0.0, 0.0])
    close(masked[1].advantages, [0.0, 1.0, 0.0, 0.0])
    assert not masked[2].advantages.any()
    for before, after in zip(everywhere, masked, strict=True):
        assert torch.equal(before.weights, after.weights)
        assert torch.equal(before.normalizers, after.normalizers)


def test_a_rollout_of_more_than_2_to_the_24_tokens_is_restricted_too():
    tokens = 2**24 + 1
    ones, rising = torch.ones(tokens), torch.arange(tokens, dtype=torch.float32) / tokens
    [kept] = restricted_to_uncertain([Credit(ones, ones, ones, ones, ones, ones, {})], [rising], 0.25)
    assert float(kept.advantages.sum(dtype=torch.float64)) / tokens == pytest.approx(0.25, abs=1e-6)


def test_sft_weights_every_trajectory_alike():
    (mixed,) = credit(SFT(), MIXED)
    for each in mixed:
        assert (each.weights == 1).all()
        assert (each.normalizers == 1).all()
        assert (each.value_weights == 0).all()


@pytest.mark.parametrize("objective", [PPO(), PPO(advantage=TurnGAE()), PPO(whiten=False), GRPO(), RAFT(), SFT()])
def test_shapes_and_types(objective: Objective):
    groups = [MIXED, group(trajectory((3, 1.0)), trajectory((0, 1.0)))]
    given = credit(objective, *groups)
    assert [len(each) for each in given] == [4, 2]
    for credits, one in zip(given, groups, strict=True):
        for own, of in zip(credits, one.trajectories, strict=True):
            for name in ARRAYS:
                array = getattr(own, name)
                assert array.shape == (of.trained_tokens,)
                assert array.dtype == torch.float32
                assert array.isfinite().all()
    assert objective.credit([], []) == []


@dataclasses.dataclass(frozen=True)
class FixedBaseline(AdvantageEstimator):
    baseline: float = 0.0

    def __call__(self, groups):
        return outcome_advantages(groups, lambda returns: returns - self.baseline)


def test_an_objective_made_of_parts():
    # Returns 1 and 3 of the samples, 50 and -50 of the searched ones, minus 2; a demonstration is left out.
    demonstration = trajectory((1, 9.0), origin=Origin.DEMONSTRATED, ended=Ended.SUCCEEDED)
    ((a, b, success, failure, left_out),) = credit(
        PolicyGradient(advantage=FixedBaseline(2.0)), group(*MIXED.trajectories, demonstration)
    )
    close(
        torch.cat([each.advantages for each in (a, b, success, failure)]), [-1.0] * 2 + [1.0] * 3 + [48.0] * 2 + [-52]
    )
    assert left_out.weights.item() == left_out.normalizers.item() == 0
    assert PolicyGradient(advantage=FixedBaseline()).needs == Needs()


def test_needs():
    assert PPO().needs == Needs(values=True)
    assert PPO(advantage=TokenGAE(bootstrap_truncated=True)).needs == Needs(values=True, final_values=True)
    assert PPO(kl=K3(0.1)).needs == Needs(values=True, reference=True)
    assert GRPO().needs == Needs()
    assert GRPO(top_entropy_quantile=0.2).needs == Needs(entropies=True)
    assert GRPO(kl=K3(0.1)).needs == Needs(reference=True)
    assert RAFT().needs == Needs()
    assert RAFT(kl=K3(0.1)).needs == Needs(reference=True)
    assert SFT().needs == Needs(logprobs=False)
    assert [objective.minimum_compared for objective in (PPO(), GRPO(), RAFT(), SFT())] == [1, 2, 1, 1]


def test_an_objective_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPO().whiten = False  # type: ignore[misc]
