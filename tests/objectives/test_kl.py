"""KL terms: their expected gradients by enumeration, and the penalty in the rewards against plain loops."""

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from ragged import trajectory_of
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives import (
    GRPO,
    K2,
    K3,
    KL,
    PPO,
    CorrectedK3,
    GroupNormalised,
    ImitateSuccesses,
    K1Reward,
    Objective,
    TokenMean,
    TurnGAE,
    UnbiasedK3,
)
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory

GENERATOR = torch.Generator().manual_seed(11)
LOGITS, REFERENCE = torch.randn(2, 5, generator=GENERATOR, dtype=torch.float64)


def of(logits: Tensor) -> Categorical:
    return Categorical(logits=logits)


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    [result] = torch.autograd.grad(function(leaf), leaf)
    return result


KL_OF_POLICY = gradient(lambda logits: kl_divergence(of(logits), of(REFERENCE)), LOGITS)
KL_OF_REFERENCE = gradient(lambda logits: kl_divergence(of(REFERENCE), of(logits)), LOGITS)


def expected_loss(term: KL, logits: Tensor, old: Tensor | None = None) -> Tensor:
    """The mean of the term over samples of an old policy, by default this one, whose probabilities have no gradient:
    as a loss has it."""
    sampler = of(logits.detach() if old is None else old)
    losses = term.loss(of(logits).logits, of(REFERENCE).logits, of(logits).logits - sampler.logits)
    return (sampler.probs * losses).sum()


@pytest.mark.parametrize(
    ("term", "gradient_of"),
    [(K3(), KL_OF_REFERENCE), (K2(), KL_OF_POLICY), (UnbiasedK3(), KL_OF_POLICY)],
)
def test_the_expected_gradient_of_a_term_in_the_loss(term: KL, gradient_of: Tensor):
    torch.testing.assert_close(gradient(lambda logits: expected_loss(term, logits), LOGITS), gradient_of)
    assert (KL_OF_POLICY - KL_OF_REFERENCE).abs().max() > 0.1  # the two differ


@pytest.mark.parametrize("old", [LOGITS, LOGITS.flip(0)])
def test_the_ratio_corrects_a_term_for_samples_of_an_old_policy(old: Tensor):
    kl = kl_divergence(of(LOGITS), of(REFERENCE))
    torch.testing.assert_close(expected_loss(CorrectedK3(), LOGITS, old), kl)
    torch.testing.assert_close(gradient(lambda x: expected_loss(CorrectedK3(), x, old), LOGITS), KL_OF_POLICY)
    if old is not LOGITS:
        assert (expected_loss(UnbiasedK3(), LOGITS, old) - kl).abs() > 0.1


@pytest.mark.parametrize("term", [K3(), UnbiasedK3()])
def test_the_expected_value_is_the_kl(term: KL):
    torch.testing.assert_close(expected_loss(term, LOGITS), kl_divergence(of(LOGITS), of(REFERENCE)))


def test_k2_is_biased_by_less_the_nearer_the_reference():
    near = REFERENCE + 0.01 * (LOGITS - REFERENCE)
    for logits, bias in ((LOGITS, 0.1), (near, 1e-6)):
        assert (expected_loss(K2(), logits) - kl_divergence(of(logits), of(REFERENCE))).abs() < bias
    assert (expected_loss(K2(), LOGITS) - kl_divergence(of(LOGITS), of(REFERENCE))).abs() > 1e-3


# Trajectories of two tokens, of which the second depends on the first: logits of the first [V], of the second [V, V].
V = 3
FIRST, SECOND = (torch.randn(*shape, generator=GENERATOR, dtype=torch.float64) for shape in ((V,), (V, V)))
OF_REFERENCE = tuple(torch.randn(*s, generator=GENERATOR, dtype=torch.float64) for s in ((V,), (V, V)))


def logprobs_of(path: tuple[int, int], first: Tensor, second: Tensor) -> Tensor:
    """[2]"""
    a, b = path
    return torch.stack([first.log_softmax(-1)[a], second[a].log_softmax(-1)[b]])


def trajectory_kl(first: Tensor, second: Tensor) -> Tensor:
    paths = list(itertools.product(range(V), repeat=2))
    own = torch.stack([logprobs_of(path, first, second).sum() for path in paths])
    reference = torch.stack([logprobs_of(path, *OF_REFERENCE).sum() for path in paths])
    return (own.exp() * (own - reference)).sum()


@pytest.mark.parametrize("turns", [(2,), (1, 1)])
@pytest.mark.parametrize(
    ("objective", "group_size", "factor"),
    [
        (PPO(whiten=False, kl=K1Reward(1.0), entropy_coefficient=0.0), 1, 1.0),
        (PPO(advantage=TurnGAE(), whiten=False, kl=K1Reward(1.0), entropy_coefficient=0.0), 1, 1.0),
        # The mean of a group of G includes the trajectory itself, which scales by (G - 1) / G.
        (
            GRPO(
                advantage=GroupNormalised(divide_by_std=False),
                aggregation=TokenMean(),
                kl=K1Reward(1.0),
                entropy_coefficient=0.0,
            ),
            2,
            0.5,
        ),
    ],
)
def test_the_expected_gradient_of_the_penalty_in_the_rewards(
    objective: Objective, group_size: int, factor: float, turns: tuple[int, ...]
):
    """All groups of trajectories without reward, each as likely as the policy makes it: KL(pi || ref) of the whole
    trajectory, with a critic (of value 0) and with a group's baseline."""
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for paths in itertools.product(itertools.product(range(V), repeat=2), repeat=group_size):
        now = [logprobs_of(path, first, second) for path in paths]
        probability = torch.stack(now).detach().sum().exp()
        members = [trajectory(turns, (0.0,) * len(turns)) for _ in paths]
        own = [
            Estimates(logprobs.detach(), torch.zeros(2), logprobs_of(path, *OF_REFERENCE), 0.0)
            for path, logprobs in zip(paths, now, strict=True)
        ]
        [credits] = objective.credit([Group(0, tuple(members))], [own])
        for logprobs, credit, estimates in zip(now, credits, own, strict=True):
            loss = objective.loss(targets(estimates, credit), Outputs(logprobs, torch.zeros(2), torch.zeros(2)))
            total = total + probability * loss.total / group_size
    expected = torch.autograd.grad(trajectory_kl(first, second), [first, second])
    for actual, correct in zip(torch.autograd.grad(total, [first, second]), expected, strict=True):
        torch.testing.assert_close(actual, factor * correct, rtol=0, atol=1e-6)


def targets(estimates: Estimates, credit: Credit) -> Targets:
    zeros = torch.zeros_like(credit.weights)
    return Targets(
        old_logprobs=estimates.logprobs,
        old_values=zeros,
        reference_logprobs=estimates.reference_logprobs,
        advantages=credit.advantages,
        value_targets=zeros,
        weights=credit.weights,
        value_weights=zeros,
        supervised_weights=zeros,
        turn_starts=zeros,
        observation_weights=zeros,
    )


def trajectory(lengths: Sequence[int], rewards: Sequence[float], origin: Origin = Origin.SAMPLED) -> Trajectory:
    return trajectory_of(list(zip(lengths, rewards, strict=True)), origin=origin, ended=Ended.SUCCEEDED)


# (lengths, rewards): one-token turns, turns without reward or tokens, returns that are equal before the penalty
RAGGED = [
    [((3, 1, 2), (0.0, 0.5, 1.0)), ((1, 1), (0.0, 0.0)), ((2, 0, 4), (0.5, 0.25, 0.0)), ((5,), (1.0,))],
    [((2, 2), (0.0, 1.0)), ((1,), (1.0,)), ((3, 1), (1.0, 0.0)), ((2, 1, 1), (0.0, 0.0, 1.0))],
]
COEFFICIENT = 0.3


@pytest.fixture
def groups() -> tuple[list[Group], list[list[Estimates]]]:
    """The last of the first group was searched, and is imitated."""
    generator = torch.Generator().manual_seed(5)
    groups = [Group(i, tuple(trajectory(*each) for each in members)) for i, members in enumerate(RAGGED)]
    searched = trajectory(*RAGGED[0][-1], origin=Origin.SEARCHED)
    groups[0] = Group(0, (*groups[0].trajectories[:-1], searched))

    def estimates(of: Trajectory) -> Estimates:
        old, values, reference = torch.randn(3, of.trained_tokens, generator=generator)
        return Estimates(old - 2, values, reference - 2, 0.0)

    return groups, [[estimates(each) for each in group.trajectories] for group in groups]


def penalties(of: Trajectory, estimates: Estimates) -> list[list[float]]:
    """Of each turn's tokens: coefficient * (log pi_old - log pi_ref)."""
    pairs = zip(estimates.logprobs.double().tolist(), estimates.reference_logprobs.double().tolist(), strict=True)
    tokens = iter([COEFFICIENT * (old - reference) for old, reference in pairs])
    return [[next(tokens) for _ in turn.response] for turn in of.turns]


def test_a_groups_baseline_compares_penalised_returns(groups: tuple[list[Group], list[list[Estimates]]]):
    credits = GRPO(kl=K1Reward(COEFFICIENT), searched=ImitateSuccesses()).credit(*groups)
    for group, own, credited in zip(*groups, credits, strict=True):
        sampled = [i for i, each in enumerate(group.trajectories) if each.origin is Origin.SAMPLED]
        returns = {
            i: sum(turn.reward for turn in group.trajectories[i].turns)
            - sum(map(sum, penalties(group.trajectories[i], own[i])))
            for i in sampled
        }
        mean = sum(returns.values()) / len(returns)
        std = math.sqrt(sum((value - mean) ** 2 for value in returns.values()) / (len(returns) - 1))
        assert std > 0.1  # in the second group by the penalties alone
        for i, credit in enumerate(credited):
            advantage = (returns[i] - mean) / (std + 1e-6) if i in returns else 1.0
            torch.testing.assert_close(
                credit.advantages, torch.full_like(credit.advantages, advantage), rtol=0, atol=1e-6
            )


def test_a_critic_learns_penalised_returns(groups: tuple[list[Group], list[list[Estimates]]]):
    """With gamma and lambda 1, advantage + V is the sum of the rewards and penalties from the token on."""
    credits = PPO(whiten=False, kl=K1Reward(COEFFICIENT)).credit(*groups)
    for group, own, credited in zip(*groups, credits, strict=True):
        for one, estimates, credit in zip(group.trajectories, own, credited, strict=True):
            expected = []
            taken = penalties(one, estimates)
            for place, turn in enumerate(taken):
                rewards = sum(later.reward for later in one.turns[place:])
                later_turns = sum(map(sum, taken[place + 1 :]))
                expected += [rewards - later_turns - sum(turn[i:]) for i in range(len(turn))]
            torch.testing.assert_close(credit.value_targets, torch.tensor(expected), rtol=0, atol=1e-6)


def test_turns_have_the_penalties_of_their_tokens(groups: tuple[list[Group], list[list[Estimates]]]):
    """A step is a turn: the first token has the whole turn's penalty too, like the others."""
    credits = PPO(advantage=TurnGAE(), whiten=False, kl=K1Reward(COEFFICIENT)).credit(*groups)
    for group, own, credited in zip(*groups, credits, strict=True):
        for one, estimates, credit in zip(group.trajectories, own, credited, strict=True):
            expected = []
            taken = penalties(one, estimates)
            for place, turn in enumerate(taken):
                value = sum(later.reward for later in one.turns[place:]) - sum(map(sum, taken[place:]))
                expected += [value] * len(turn)
            torch.testing.assert_close(credit.value_targets, torch.tensor(expected), rtol=0, atol=1e-6)


def test_the_penalty_is_not_in_the_loss():
    estimates = Estimates(torch.tensor([-1.0]), torch.zeros(1), torch.tensor([-3.0]), 0.0)
    [[credit]] = PPO(kl=K1Reward(0.5)).credit([Group(0, (trajectory((1,), (0.0,)),))], [[estimates]])
    now = torch.tensor([-1.0])
    outputs = Outputs(now, torch.zeros(1), torch.zeros(1))
    with_term = PPO(kl=K1Reward(0.5)).loss(targets(estimates, credit), outputs)
    without = PPO().loss(targets(estimates, credit), outputs)
    assert with_term.total == without.total
    assert with_term.stats["kl_reference"].item() == pytest.approx(math.exp(-2) - 1 + 2)  # log(ref / pi) = -2
