"""Advantage estimators and their presets on ragged random groups, against plain loops over the cited equations.

The references work on Python floats and share no code with the objectives. The groups have several turns, turns of one
token, of reward 0 and without tokens, truncated trajectories, searched ones whose credit is overridden, and groups of
equal returns, of successes alone and of failures alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

import pytest
import torch
from ragged import trajectory_of, zero_estimates
from torch import Tensor

from tsr_lightning.batching.schedule import Updates, schedule
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates, columns
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    K3,
    PPO,
    RLOO,
    BilevelGAE,
    Constant,
    Credit,
    DrGRPO,
    GiGPO,
    GroupInGroup,
    ImitateSuccesses,
    K1Reward,
    MaxRL,
    Needs,
    OptimalBaseline,
    Outputs,
    PolicyGradient,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReinforceRej,
    ReturnToGo,
    RewardShaping,
    SuccessRelative,
    SuccessSign,
    Targets,
    TokenMean,
    Unchanged,
)
from tsr_lightning.objectives.advantages import bilevel_gae, token_gae
from tsr_lightning.rng import Key
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory

SEEDS = range(6)
BETA = 0.3


# -- random rollouts ---------------------------------------------------------------------------------------------------


def random_trajectory(random: Random, searched: float, succeeded: bool, reward: float | None) -> Trajectory:
    """One of 1 to 5 turns; with `reward` given, that is all it returns."""
    turns = random.randint(1, 5)
    lengths = [random.choice((1, 1, 2, 3, 5)) if random.random() < 0.85 or turn == 0 else 0 for turn in range(turns)]
    rewards = [random.choice((0.0, random.gauss(0, 1))) for _ in lengths]
    if reward is not None:
        rewards = [0.0] * (turns - 1) + [reward]
    trajectory = trajectory_of(
        list(zip(lengths, rewards, strict=True)),
        origin=Origin.SEARCHED if random.random() < searched else Origin.SAMPLED,
        ended=Ended.SUCCEEDED if succeeded else random.choice([Ended.FAILED, Ended.TURN_LIMIT]),
    )
    return replace(trajectory, state_keys=tuple(random.choice("abcdef") for _ in lengths))


def random_rollout(seed: int, searched: float = 0.3) -> tuple[list[Group], list[list[Estimates]]]:
    random = Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def group(size: int, chance: float = 0.5, reward: float | None = None) -> Group:
        members = [random_trajectory(random, searched, random.random() < chance, reward) for _ in range(size)]
        return Group(0, tuple(members))

    groups = [group(5), group(3), group(4, reward=0.7), group(4, chance=1.0), group(4, chance=0.0), group(2)]

    def estimates(trajectory: Trajectory) -> Estimates:
        n = trajectory.trained_tokens
        old, values, noise = torch.randn(3, n, generator=generator)
        return Estimates(-old.abs(), values, -old.abs() + 0.2 * noise, random.gauss(0, 1))

    return groups, [[estimates(each) for each in one.trajectories] for one in groups]


# -- references --------------------------------------------------------------------------------------------------------


@dataclass
class Plain:
    """A trajectory in Python numbers."""

    lengths: list[int]
    rewards: list[float]  # per turn
    penalties: list[list[float]]  # per turn and token
    values: list[list[float]]
    final_value: float
    succeeded: bool
    truncated: bool
    sampled: bool
    states: tuple[str, ...]

    @property
    def turn_rewards(self) -> list[float]:
        return [reward - sum(own) for reward, own in zip(self.rewards, self.penalties, strict=True)]

    @property
    def total(self) -> float:
        return sum(self.turn_rewards)

    def tokens(self, per_turn: list[float]) -> list[float]:
        return [value for length, value in zip(self.lengths, per_turn, strict=True) for _ in range(length)]

    def rewards_of_trained_turns(self) -> list[tuple[int, float]]:
        """(turn, reward) of the turns with tokens; a turn without any gives its reward to the one before."""
        found: list[tuple[int, float]] = []
        for turn, (length, reward) in enumerate(zip(self.lengths, self.rewards, strict=True)):
            if length:
                found.append((turn, reward))
            elif found:
                found[-1] = (found[-1][0], found[-1][1] + reward)
        return found


def plain(trajectory: Trajectory, estimates: Estimates, penalised: bool) -> Plain:
    lengths = [len(turn.response) for turn in trajectory.turns]
    penalties = [
        BETA * (a - b) if penalised else 0.0
        for a, b in zip(estimates.logprobs.tolist(), estimates.reference_logprobs.tolist(), strict=True)
    ]
    values = estimates.values.tolist()
    ends = [sum(lengths[: turn + 1]) for turn in range(len(lengths))]
    spans = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    return Plain(
        lengths,
        [turn.reward for turn in trajectory.turns],
        [penalties[span] for span in spans],
        [values[span] for span in spans],
        estimates.final_value,
        trajectory.succeeded,
        trajectory.truncated,
        trajectory.origin is Origin.SAMPLED,
        trajectory.state_keys,
    )


Rollout = list[list[Plain]]
Reference = Callable[[Rollout], list[list[list[float]]]]  # of compared trajectories, indexed by group, member and token


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def unbiased_std(values: list[float]) -> float:
    return (sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def per_group(advantage: Callable[[list[Plain], Plain], float]) -> Reference:
    return lambda rollout: [
        [[advantage(group, one)] * sum(one.lengths) for one in group] if group else [] for group in rollout
    ]


def whitened(rollout: list[list[list[float]]]) -> list[list[list[float]]]:
    tokens = [value for group in rollout for one in group for value in one]
    centre = mean(tokens)
    variance = mean([(value - centre) ** 2 for value in tokens])
    return [[[(value - centre) / (variance + 1e-8) ** 0.5 for value in one] for one in group] for group in rollout]


def leave_one_out(group: list[Plain], one: Plain) -> float:
    others = [other.total for other in group if other is not one]
    return one.total - mean(others) if others else 0.0


def centred(group: list[Plain], one: Plain) -> float:
    return one.total - mean([each.total for each in group])


def relative_success(group: list[Plain], one: Plain) -> float:
    share = mean([float(each.succeeded) for each in group])
    return (one.succeeded - share) / share if share else 0.0


def signed_success(group: list[Plain], one: Plain) -> float:
    return 1.0 if one.succeeded else -1.0


def to_go(gamma: float) -> Reference:
    def of(one: Plain) -> list[float]:
        own = dict(one.rewards_of_trained_turns())
        rewards = []
        for turn, length in enumerate(one.lengths):
            rewards += [own[turn] * (i == length - 1) - one.penalties[turn][i] for i in range(length)]
        return [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]

    return lambda rollout: [[of(one) for one in group] for group in rollout]


def gigpo(weight: float, gamma: float, by_std: bool) -> Reference:
    def relative(value: float, all_values: list[float]) -> float:
        if len(all_values) == 1:
            return 0.0
        return (value - mean(all_values)) / (unbiased_std(all_values) + 1e-6 if by_std else 1.0)

    def discounted(one: Plain, turn: int) -> float:
        return sum(gamma ** (k - turn) * one.turn_rewards[k] for k in range(turn, len(one.lengths)))

    def of(group: list[Plain], one: Plain) -> list[float]:
        episode = relative(one.total, [each.total for each in group])
        advantages = []
        for turn, state in enumerate(one.states):
            same = [discounted(o, k) for o in group for k in range(len(o.states)) if o.states[k] == state]
            advantages.append(episode + weight * relative(discounted(one, turn), same))
        return one.tokens(advantages)

    return lambda rollout: [[of(group, one) for one in group] for group in rollout]


def bilevel(gamma: float, gae_lambda: float, turn_gamma: float, turn_lambda: float, bootstrap: bool) -> Reference:
    def of(one: Plain) -> list[float]:
        turns = one.rewards_of_trained_turns()
        of_turn: dict[int, float] = {}
        following, following_value = 0.0, one.final_value if bootstrap and one.truncated else 0.0
        for turn, reward in reversed(turns):
            value = one.values[turn][-1]
            following = reward + turn_gamma * following_value - value + turn_gamma * turn_lambda * following
            of_turn[turn], following_value = following, value
        tokens = []
        for turn, _ in turns:
            values, penalties = one.values[turn], one.penalties[turn]
            last = len(values) - 1
            deltas = [-penalties[i] + gamma * values[i + 1] - values[i] for i in range(last)]
            deltas.append(of_turn[turn] - penalties[last])
            decay = gamma * gae_lambda
            tokens += [sum(decay ** (k - i) * deltas[k] for k in range(i, last + 1)) for i in range(last + 1)]
        return tokens

    return lambda rollout: [[of(one) for one in group] for group in rollout]


@dataclass(frozen=True)
class Case:
    objective: PolicyGradient
    reference: Reference
    weights: str = "sequence"  # how the reference weights a token: sequence, token or constant
    whiten: bool = False
    mixed_only: bool = False  # groups that all succeeded or all failed are left out


CONSTANT = 40
CASES = {
    "RLOO": Case(RLOO(), per_group(leave_one_out)),
    "RLOO with KL": Case(RLOO(kl=K1Reward(BETA)), per_group(leave_one_out)),
    "DrGRPO": Case(DrGRPO(aggregation=Constant(CONSTANT)), per_group(centred), "constant"),
    "REINFORCE++": Case(ReinforcePlusPlus(advantage=ReturnToGo(0.9)), to_go(0.9), "token", whiten=True),
    "REINFORCE++ with KL": Case(ReinforcePlusPlus(kl=K1Reward(BETA)), to_go(1.0), "token", whiten=True),
    "REINFORCE++ baseline": Case(ReinforcePlusPlusBaseline(), per_group(centred), "token", whiten=True),
    "MaxRL": Case(MaxRL(), per_group(relative_success)),
    "REINFORCE-Rej": Case(ReinforceRej(), per_group(signed_success), mixed_only=True),
    "REINFORCE-Rej whitened": Case(
        ReinforceRej(aggregation=TokenMean(), whiten=True),
        per_group(signed_success),
        "token",
        whiten=True,
        mixed_only=True,
    ),
    "GiGPO": Case(GiGPO(), gigpo(1.0, 0.95, False)),
    "GiGPO by std": Case(GiGPO(advantage=GroupInGroup(0.5, 0.8, True)), gigpo(0.5, 0.8, True)),
    "GiGPO with KL": Case(GiGPO(kl=K1Reward(BETA)), gigpo(1.0, 0.95, False)),
    "bi-level GAE": Case(
        PPO(whiten=False, advantage=BilevelGAE(0.9, 0.8, 0.95, 0.7, True)), bilevel(0.9, 0.8, 0.95, 0.7, True), "token"
    ),
    "bi-level GAE with KL": Case(
        PPO(advantage=BilevelGAE(), kl=K1Reward(BETA)), bilevel(1.0, 1.0, 0.95, 1.0, False), "token", whiten=True
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def expected_credit(case: Case, rollout: Rollout, searched_too: bool) -> list[tuple[list[float], float, float]]:
    """(advantages, weight, normalizer) of each trajectory, in order."""
    compared = [[one for one in group if searched_too or one.sampled] for group in rollout]
    if case.mixed_only:
        compared = [group if len({one.succeeded for one in group}) == 2 else [] for group in compared]
    advantages = case.reference(compared)
    advantages = whitened(advantages) if case.whiten else advantages
    known = {
        id(one): own
        for group, of_group in zip(compared, advantages, strict=True)
        for one, own in zip(group, of_group, strict=True)
    }
    expected = []
    for one in chain.from_iterable(rollout):
        tokens = sum(one.lengths)
        weight = {"sequence": 1 / tokens, "token": 1.0, "constant": 1 / CONSTANT}[case.weights]
        normalizer = 1.0 if case.weights == "token" else 1 / tokens
        if id(one) in known:
            expected.append((known[id(one)], weight, normalizer))
        elif not searched_too and not one.sampled and one.succeeded:  # imitated
            expected.append(([1.0] * tokens, weight, normalizer))
        else:
            expected.append(([0.0] * tokens, 0.0, 0.0))
    return expected


def credit_of(case: Case, seed: int, searched_too: bool) -> tuple[list[Credit], list[Estimates], Rollout]:
    groups, estimates = random_rollout(seed)
    objective = replace(case.objective, searched=Unchanged() if searched_too else ImitateSuccesses())
    penalised = case.objective.kl is not None
    rollout = [
        [plain(*pair, penalised) for pair in zip(group.trajectories, own, strict=True)]
        for group, own in zip(groups, estimates, strict=True)
    ]
    credits = list(chain.from_iterable(objective.credit(groups, estimates)))
    return credits, list(chain.from_iterable(estimates)), rollout


def close(actual: Tensor, expected: list[float] | Tensor) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)


@every_case
@pytest.mark.parametrize("searched_too", [False, True], ids=["imitated", "compared"])
@pytest.mark.parametrize("seed", SEEDS)
def test_credit_equals_the_reference(case: Case, searched_too: bool, seed: int):
    credits, estimates, rollout = credit_of(case, seed, searched_too)
    expected = expected_credit(case, rollout, searched_too)
    for credit, (advantages, weight, normalizer) in zip(credits, expected, strict=True):
        close(credit.weights, [weight] * len(advantages))
        close(credit.normalizers, [normalizer] * len(advantages))
        if weight:
            close(credit.advantages, advantages)
    unwhitened = chain.from_iterable(case.reference(rollout))
    members = chain.from_iterable(rollout)
    for credit, own, advantages, one in zip(credits, estimates, unwhitened, members, strict=True):
        if case.objective.critic is None:
            assert not credit.value_weights.any()
        else:  # the critic trains on what is compared
            assert (credit.value_weights == float(searched_too or one.sampled)).all()
            close(credit.value_targets, torch.tensor(advantages) + own.values.double())


@every_case
@pytest.mark.parametrize("seed", SEEDS)
def test_loss_and_gradient_equal_the_reference(case: Case, seed: int):
    """The clipped surrogate over a whole step, -sum w min(r A, clip(r, 0.8, 1.28) A) / sum n, and its derivative."""
    credits, estimates, rollout = credit_of(case, seed, searched_too=False)
    objective = replace(case.objective, entropy_coefficient=0.0)
    if objective.critic is not None:
        objective = replace(objective, critic=replace(objective.critic, coefficient=0.0))
    old = torch.cat([each.logprobs for each in estimates]).double()
    moved = 0.4 * torch.randn(len(old), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    now = (old + moved).requires_grad_()
    column = {
        field.name: torch.cat([getattr(each, field.name) for each in credits]).double() for field in columns(Credit)
    }
    zeros = torch.zeros_like(old)
    targets = Targets(
        old_logprobs=old,
        old_values=zeros,
        reference_logprobs=torch.cat([each.reference_logprobs for each in estimates]).double(),
        advantages=column["advantages"],
        value_targets=column["value_targets"],
        weights=column["weights"] / column["normalizers"].sum(),
        value_weights=column["value_weights"],
        supervised_weights=zeros,
        turn_starts=zeros,
        observation_weights=zeros,
    )
    loss = objective.loss(targets, Outputs(now, zeros, zeros))
    loss.total.backward()

    expected = expected_credit(case, rollout, searched_too=False)
    divisor = sum(normalizer * len(advantages) for advantages, _, normalizer in expected)
    total, gradient, token = 0.0, [], 0
    ratios = moved.exp().tolist()
    for advantages, weight, _ in expected:
        for advantage in advantages:
            r, token = ratios[token], token + 1
            clipped = min(max(r, 0.8), 1.28)
            total -= weight / divisor * min(r * advantage, clipped * advantage)
            moves = r * advantage <= clipped * advantage
            gradient.append(-weight / divisor * r * advantage if moves else 0.0)
    close(loss.total.detach(), torch.tensor(total, dtype=torch.float64))
    close(now.grad, gradient)


def test_the_random_rollouts_have_what_the_estimators_must_stand():
    rollouts = [random_rollout(seed) for seed in SEEDS]
    trajectories = [each for groups, _ in rollouts for group in groups for each in group.trajectories]
    turns = [turn for each in trajectories for turn in each.turns]
    assert {0, 1, 5} <= {len(turn.response) for turn in turns}
    assert any(turn.reward == 0 for turn in turns)
    assert {each.truncated for each in trajectories} == {each.succeeded for each in trajectories} == {False, True}
    assert {each.origin for each in trajectories} == {Origin.SAMPLED, Origin.SEARCHED}
    assert max(len(each.state_keys) - len(set(each.state_keys)) for each in trajectories) > 0


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_the_optimal_baseline_weighs_returns_by_tokens():
    """Returns 1 and 0 of one and of three tokens: the baseline is (1 * 1 + 3 * 0) / 4. Of equal ones it is the mean."""
    objective = GRPO(advantage=OptimalBaseline(), entropy_coefficient=0.0)
    for tokens, expected in (((1, 3), (0.75, -0.25)), ((2, 2), (0.5, -0.5))):
        group = Group(
            0, tuple(trajectory_of([(count, value)]) for count, value in zip(tokens, (1.0, 0.0), strict=True))
        )
        credits = objective.credit([group], [[zero_estimates(each) for each in group.trajectories]])
        assert [credit.advantages.unique().tolist() for credit in credits[0]] == [[value] for value in expected]


def test_rounding_of_a_baseline_takes_no_step():
    """Equal returns of 5 to 8 tokens leave 6e-17, for which AdamW would take a full step of the entropy bonus."""
    objective = GRPO(advantage=OptimalBaseline())
    group = Group(0, tuple(trajectory_of([(count, -0.3)]) for count in (5, 6, 7, 8)))
    [credits] = objective.credit([group], [[zero_estimates(each) for each in group.trajectories]])
    assert 0 < max(float(credit.advantages.abs().max()) for credit in credits) < 1e-15

    def estimate(asked: Sequence[ToEstimate]) -> list[Estimates]:
        return [Estimates(*torch.zeros(3, one.piece.trained_tokens), 0.0) for one in asked]

    credited = credited_sequences([objective.comparisons(group)], objective, estimate, ProcessGroup())
    assert credited.sequences
    assert schedule(credited.sequences, Updates(minibatches=1), Key(0)) == []


def test_bilevel_gae_by_hand():
    # Turns of 2 and 1 tokens, rewards 0 and 1; values 1, 2 and 3. Factors: turn 0.5 and 0.5, token 0.9 and 0.5.
    # Turn 1: A = 1 - 3 = -2.  Turn 0: A = 0 + 0.5 * 3 - 2 + 0.25 * -2 = -1.
    # Token 0: 0.9 * 2 - 1 + 0.45 * -1 = 0.35.
    estimate = bilevel_gae(
        [2, 1],
        [0.0, 1.0],
        torch.tensor([1.0, 2.0, 3.0]),
        gamma=0.9,
        gae_lambda=0.5,
        turn_gamma=0.5,
        turn_gae_lambda=0.5,
    )
    close(estimate.advantages, [0.35, -1.0, -2.0])
    close(estimate.value_targets, [1.35, 1.0, 1.0])


@pytest.mark.parametrize("seed", SEEDS)
def test_bilevel_gae_without_discounts_is_token_gae(seed: int):
    groups, estimates = random_rollout(seed)
    for trajectory, own in zip(groups[0].trajectories, estimates[0], strict=True):
        lengths, rewards = [len(turn.response) for turn in trajectory.turns], [turn.reward for turn in trajectory.turns]
        ones = {"gamma": 1.0, "gae_lambda": 1.0, "final_value": own.final_value}
        both = bilevel_gae(lengths, rewards, own.values, turn_gamma=1.0, turn_gae_lambda=1.0, **ones)
        close(both.advantages, token_gae(lengths, rewards, own.values, **ones).advantages)


def test_bilevel_gae_of_a_trajectory_without_tokens_is_empty():
    factors = {"gamma": 1.0, "gae_lambda": 1.0, "turn_gamma": 1.0, "turn_gae_lambda": 1.0}
    assert bilevel_gae([0], [1.0], torch.zeros(0), **factors).advantages.shape == (0,)


def test_gigpo_compares_turns_in_equal_states_alone():
    # Both begin in a and return 1 and 0: A_episode is 0.5 and -0.5. From a on they return 0.5 * 1 and 0, around 0.25.
    # b and c are met once.
    (one, two) = (stated("ab", [0.0, 1.0]), stated("ac", [0.0, 0.0]))
    (credits,) = GiGPO(advantage=GroupInGroup(gamma=0.5)).credit([Group(0, (one, two))], [[zeros(one), zeros(two)]])
    close(credits[0].advantages, [0.75, 0.5])
    close(credits[1].advantages, [-0.75, -0.5])


def test_gigpo_with_step_weight_0_is_grpo():
    groups, estimates = random_rollout(0)
    ours = GiGPO(advantage=GroupInGroup(step_weight=0.0, divide_by_std=True)).credit(groups, estimates)
    for own, other in zip(chain(*ours), chain(*GRPO().credit(groups, estimates)), strict=True):
        assert torch.equal(own.advantages, other.advantages)


def test_gigpo_refuses_trajectories_without_state_keys():
    one = replace(stated("ab", [0.0, 1.0]), state_keys=())
    with pytest.raises(ConfigError) as error:
        GiGPO().credit([Group(0, (one, one))], [[zeros(one)] * 2])
    message = "GroupInGroup needs the state of every turn; collect them with Driver(keep_state_keys=True)"
    assert str(error.value) == f"Trajectory.state_keys is (): {message}"


def stated(states: str, rewards: list[float]) -> Trajectory:
    one = random_trajectory(Random(0), 0.0, True, None)
    turns = tuple(replace(one.turns[0], response=(2,), reward=reward) for reward in rewards)
    return replace(one, turns=turns, state_keys=tuple(states))


def zeros(trajectory: Trajectory) -> Estimates:
    n = trajectory.trained_tokens
    return Estimates(*(torch.zeros(n) for _ in range(3)), 0.0)


# -- what is learned from ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [MaxRL(), ReinforceRej()], ids=["MaxRL", "REINFORCE-Rej"])
@pytest.mark.parametrize("searched", [Unchanged(), ImitateSuccesses()], ids=["compared", "imitated"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_teaches_where_compared_returns_differ_or_a_member_is_imitated(
    objective: PolicyGradient, searched, seed: int
):
    """So that a filter can tell from `compares`, `return_of` and `imitates`."""
    objective = replace(objective, searched=searched)
    groups, estimates = random_rollout(seed, searched=0.6)
    for group, credits in zip(groups, objective.credit(groups, estimates), strict=True):
        returns = {objective.return_of(each) for each in group.trajectories if objective.compares(each.origin)}
        imitated = any(objective.imitates(each) for each in group.trajectories)
        teaches = any((credit.weights * credit.advantages).any() for credit in credits)
        assert teaches == (len(returns) == 2 or imitated)


def test_needs_and_fewest_compared():
    assert GiGPO().needs == Needs(state_keys=True)
    assert PPO(advantage=BilevelGAE(bootstrap_truncated=True)).needs == Needs(values=True, final_values=True)
    of_a_group = [DrGRPO(), GiGPO(), MaxRL(), ReinforcePlusPlusBaseline(), ReinforceRej(), RLOO()]
    assert [objective.minimum_compared for objective in of_a_group] == [2] * 6
    for objective in (ReinforcePlusPlus(), PPO(advantage=BilevelGAE())):
        assert objective.minimum_compared == 1
        assert not objective.needs.state_keys


class Doubled(RewardShaping):
    def __call__(self, rewards, trajectory):
        return [2 * reward for reward in rewards]


@pytest.mark.parametrize("estimator", [SuccessRelative(), SuccessSign()])
def test_what_would_change_nothing_is_refused(estimator):
    name = type(estimator).__name__
    with pytest.raises(ConfigError, match=rf"shaping is .*: {name} looks at success alone.*; use \[\]"):
        PolicyGradient(advantage=estimator, shaping=[Doubled()])
    with pytest.raises(ConfigError, match=rf"kl is .*: {name} looks at success alone.*; use UnbiasedK3"):
        PolicyGradient(advantage=estimator, kl=K1Reward(BETA))
    assert PolicyGradient(advantage=estimator, kl=K3()).needs.reference


def test_the_return_that_is_compared_is_shaped():
    one = stated("ab", [0.5, 1.0])
    assert RLOO().return_of(one) == one.episode_return == 1.5
    assert RLOO(shaping=[Doubled()]).return_of(one) == 3.0
    assert MaxRL().return_of(one) == MaxRL().return_of(replace(one, turns=one.turns[:1])) == 1.0
