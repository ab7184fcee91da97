"""Advantages against hand-computed numbers, the brute-force definition, and torchrl."""

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.objectives.llm import MCAdvantage
from torchrl.objectives.value.functional import generalized_advantage_estimate

from tsr_lightning.objectives.advantages import gae, group_normalised, token_gae, turn_gae, whiten


def close(actual: Tensor, expected: Tensor | list[float], tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance, check_dtype=False
    )


def by_definition(
    rewards: list[float], values: list[float], gamma: float, gae_lambda: float, final_value: float
) -> Tensor:
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, summed anew for every t."""
    next_values = [*values[1:], final_value]
    deltas = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, next_values, strict=True)]
    steps = len(deltas)
    return torch.tensor(
        [sum((gamma * gae_lambda) ** k * deltas[t + k] for k in range(steps - t)) for t in range(steps)]
    )


def random_turns(seed: int) -> tuple[list[int], list[float], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    turns = 1 + seed % 5
    lengths = torch.randint(1, 6, (turns,), generator=generator).tolist()
    rewards = torch.randn(turns, generator=generator).tolist()
    return lengths, rewards, torch.randn(sum(lengths), generator=generator)


def test_gae_by_hand():
    # delta_2 = 2 + 0.5 * 4 - 3 = 1      A_2 = 1                     R_2 = 1 + 3 = 4
    # delta_1 = -1 + 0.5 * 3 - 1 = -0.5  A_1 = -0.5 + 0.4 * 1 = -0.1 R_1 = -0.1 + 1 = 0.9   (gamma lambda = 0.5 * 0.8)
    # delta_0 = 0 + 0.5 * 1 - 2 = -1.5   A_0 = -1.5 + 0.4 * -0.1 = -1.54  R_0 = -1.54 + 2 = 0.46
    estimate = gae(
        torch.tensor([0.0, -1.0, 2.0]), torch.tensor([2.0, 1.0, 3.0]), gamma=0.5, gae_lambda=0.8, final_value=4.0
    )
    close(estimate.advantages, [-1.54, -0.1, 1.0])
    close(estimate.value_targets, [0.46, 0.9, 4.0])


def test_token_gae_by_hand():
    # Turns of 2 and 1 tokens with rewards 1 and 10: rewards per token 0, 1, 10. gamma = lambda = 1, no bootstrap, so
    # the return is the sum of later rewards (11, 11, 10), and the advantage is the return minus the value.
    estimate = token_gae([2, 1], [1.0, 10.0], torch.tensor([1.0, 2.0, 3.0]), gamma=1.0, gae_lambda=1.0)
    close(estimate.value_targets, [11.0, 11.0, 10.0])
    close(estimate.advantages, [10.0, 9.0, 7.0])


def test_turn_gae_by_hand():
    # V of the turns is that of their first tokens, 1 and 3; the 100 in between is not used.
    # delta_1 = 10 - 3 = 7               A_1 = 7                      R_1 = 10
    # delta_0 = 1 + 0.9 * 3 - 1 = 2.7    A_0 = 2.7 + 0.45 * 7 = 5.85  R_0 = 6.85   (gamma lambda = 0.9 * 0.5)
    estimate = turn_gae([2, 1], [1.0, 10.0], torch.tensor([1.0, 100.0, 3.0]), gamma=0.9, gae_lambda=0.5)
    close(estimate.advantages, [5.85, 5.85, 7.0])
    close(estimate.value_targets, [6.85, 6.85, 10.0])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("gamma", "gae_lambda", "final_value"), [(0.97, 0.9, 0.0), (1.0, 1.0, 0.7), (0.9, 0.0, -2.0)])
def test_token_gae_matches_the_definition(seed: int, gamma: float, gae_lambda: float, final_value: float):
    lengths, rewards, values = random_turns(seed)
    per_token = [r for n, reward in zip(lengths, rewards, strict=True) for r in [0.0] * (n - 1) + [reward]]
    estimate = token_gae(lengths, rewards, values, gamma=gamma, gae_lambda=gae_lambda, final_value=final_value)
    close(estimate.advantages, by_definition(per_token, values.tolist(), gamma, gae_lambda, final_value), 1e-5)
    close(estimate.value_targets, estimate.advantages + values, 1e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("gamma", "gae_lambda", "final_value"), [(0.97, 0.9, 0.0), (1.0, 1.0, 0.7), (0.9, 0.0, -2.0)])
def test_turn_gae_matches_the_definition(seed: int, gamma: float, gae_lambda: float, final_value: float):
    lengths, rewards, values = random_turns(seed)
    firsts = [values[sum(lengths[:turn])].item() for turn in range(len(lengths))]
    per_turn = by_definition(rewards, firsts, gamma, gae_lambda, final_value)
    estimate = turn_gae(lengths, rewards, values, gamma=gamma, gae_lambda=gae_lambda, final_value=final_value)
    repeats = torch.tensor(lengths)
    close(estimate.advantages, per_turn.repeat_interleave(repeats), 1e-5)
    close(estimate.value_targets, (per_turn + torch.tensor(firsts)).repeat_interleave(repeats), 1e-5)


def test_token_and_turn_gae_agree_where_turns_have_one_token():
    values = torch.tensor([0.3, -1.2, 0.8])
    arguments = {"gamma": 0.9, "gae_lambda": 0.7, "final_value": 0.4}
    by_token = token_gae([1, 1, 1], [1.0, -1.0, 2.0], values, **arguments)
    by_turn = turn_gae([1, 1, 1], [1.0, -1.0, 2.0], values, **arguments)
    assert torch.equal(by_token.advantages, by_turn.advantages)
    assert torch.equal(by_token.value_targets, by_turn.value_targets)


@pytest.mark.parametrize("estimator", [token_gae, turn_gae])
def test_the_reward_of_an_empty_turn_goes_to_the_turn_before_it(estimator):
    values = torch.tensor([0.5, 0.25, -1.0])
    arguments = {"gamma": 0.9, "gae_lambda": 0.7}
    with_empty_turns = estimator([0, 2, 0, 0, 1], [9.0, 1.0, 2.0, 3.0, 4.0], values, **arguments)
    close(with_empty_turns.advantages, estimator([2, 1], [6.0, 4.0], values, **arguments).advantages)


@pytest.mark.parametrize("estimator", [token_gae, turn_gae])
def test_a_trajectory_without_tokens_has_no_advantages(estimator):
    estimate = estimator([0], [1.0], torch.zeros(0), gamma=1.0, gae_lambda=1.0)
    assert estimate.advantages.shape == estimate.value_targets.shape == (0,)


def test_group_normalised_by_hand():
    # Mean (1 + 2 + 6) / 3 = 3; deviations -2, -1, 3; unbiased variance (4 + 1 + 9) / 2 = 7.
    returns = torch.tensor([1.0, 2.0, 6.0])
    close(group_normalised(returns, divide_by_std=False), [-2.0, -1.0, 3.0])
    root = math.sqrt(7)
    close(group_normalised(returns, divide_by_std=True), [-2 / root, -1 / root, 3 / root])


@pytest.mark.parametrize("returns", [[], [3.0], [0.1, 0.1, 0.1]])
@pytest.mark.parametrize("divide_by_std", [True, False])
def test_a_group_without_spread_has_zero_advantages(returns: list[float], divide_by_std: bool):
    close(group_normalised(torch.tensor(returns), divide_by_std=divide_by_std), [0.0] * len(returns))


def test_whiten_by_hand():
    # Weights 1 and 3: mean (0 + 3 * 4) / 4 = 3, variance (1 * 9 + 3 * 1) / 4 = 3. The last has weight 0 and is only
    # transformed: (6 - 3) / sqrt(3) = sqrt(3).
    whitened = whiten(torch.tensor([0.0, 4.0, 6.0]), torch.tensor([1.0, 3.0, 0.0]))
    root = math.sqrt(3)
    close(whitened, [-root, 1 / root, root])


def test_whiten_is_finite_without_weight_or_spread():
    close(whiten(torch.tensor([5.0, 7.0]), torch.zeros(2)), [5.0, 7.0])
    close(whiten(torch.tensor([5.0, 5.0]), torch.ones(2)), [0.0, 0.0])
    assert whiten(torch.zeros(0), torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("terminated", [True, False])
def test_gae_matches_torchrl(terminated: bool):
    torch.manual_seed(0)
    steps, final_value = 17, 0.8
    rewards, values = torch.randn(steps), torch.randn(steps)
    ends = torch.zeros(steps, 1, dtype=torch.bool)
    ends[-1] = True
    theirs, targets = generalized_advantage_estimate(
        0.97,
        0.9,
        values[:, None],
        torch.cat([values[1:], torch.tensor([final_value])])[:, None],
        rewards[:, None],
        done=ends,
        terminated=ends if terminated else torch.zeros_like(ends),
    )
    ours = gae(rewards, values, gamma=0.97, gae_lambda=0.9, final_value=0.0 if terminated else final_value)
    close(ours.advantages, theirs[:, 0], 1e-5)
    close(ours.value_targets, targets[:, 0], 1e-5)


def test_group_normalised_matches_torchrl():
    torch.manual_seed(1)
    rewards = torch.randn(6, 4)  # six trajectories of four steps
    grouping = MCAdvantage(grpo_size=6, prompt_key="instance", trajectory_return="sum")
    done = torch.tensor([[False], [False], [False], [True]])
    for row in rewards:
        step = TensorDict(reward=row[:, None], done=done, batch_size=[4])
        grouped = grouping.inv(TensorDict(instance=torch.zeros(4), next=step, batch_size=[4]))
    theirs = grouped["advantage"].view(6, 4)
    ours = group_normalised(rewards.sum(1), divide_by_std=True)
    close(ours[:, None].expand(6, 4), theirs, 1e-5)
