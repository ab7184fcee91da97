"""Advantages as pure functions of rewards, values and returns.

Knows neither groups nor objectives. S is a number of steps, T the turns of a trajectory, N its trained tokens (turn
after turn), G the trajectories of a group, M the turns of all of them. Results are float32, intermediate sums float64.
GAE returns CPU tensors.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    """An estimate per step or per token."""

    advantages: Tensor  # [S] or [N]
    value_targets: Tensor  # the same shape: the critic's regression target
    weight: float = 1.0  # factor of the aggregation's weight and normalizer; 0 leaves the trajectory out
    quantities: Mapping[str, Tensor] = MappingProxyType({})  # [N] each: further ones for the loss (`Needs.quantities`)


def uniform(tokens: int, advantage: float) -> Advantages:
    """Gives each of N tokens the same advantage, and no value targets."""
    zeros = torch.zeros(tokens)
    return Advantages(torch.full_like(zeros, advantage), zeros)


def gae(rewards: Tensor, values: Tensor, *, gamma: float, gae_lambda: float, final_value: float = 0.0) -> Advantages:
    """Generalised advantage estimation over S steps, equations 11 to 16 of https://arxiv.org/abs/1506.02438.

        delta_t = r_t + gamma V_{t+1} - V_t,   A_t = sum_k (gamma lambda)^k delta_{t+k},   R_t = A_t + V_t

    Args:
        rewards: [S].
        values: [S], V of the state before each step.
        gamma: The discount of a step.
        gae_lambda: The weight of longer returns; 1 is Monte Carlo, 0 one-step.
        final_value: V of the state after the last step; 0 where the episode is over.
    """
    backed_up = _gae(rewards.tolist(), values.tolist(), gamma, gae_lambda, final_value)
    advantages = torch.tensor(backed_up, dtype=torch.float64)
    return Advantages(advantages.float(), (advantages + values.double().cpu()).float())


def _gae(
    rewards: Sequence[float], values: Sequence[float], gamma: float, gae_lambda: float, final_value: float
) -> list[float]:
    """The advantages [S]. Python floats: a recursion over one-element tensors would be a hundred times slower."""
    next_value = final_value
    advantage = 0.0
    backwards = []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * advantage
        next_value = value
        backwards.append(advantage)
    return backwards[::-1]


def token_gae(
    lengths: Sequence[int],  # [T] trained tokens of each turn
    rewards: Sequence[float],  # [T]
    values: Tensor,  # [N]
    *,
    gamma: float,
    gae_lambda: float,
    final_value: float = 0.0,
    penalties: Tensor | None = None,  # [N] taken off the tokens' rewards
) -> Advantages:
    """`gae` with one step per token; a turn's reward falls on its last trained token, every other token has 0.

    Observation tokens are not steps: after a turn's last token comes the next turn's first, so gamma and lambda count
    sampled tokens alone. Returns [N] each.
    """
    per_token = token_rewards(lengths, rewards, penalties)
    return gae(per_token, values, gamma=gamma, gae_lambda=gae_lambda, final_value=final_value)


def token_rewards(lengths: Sequence[int], rewards: Sequence[float], penalties: Tensor | None = None) -> Tensor:
    """The rewards of the tokens, float64 [N]: a turn's falls on its last trained token, and each token's penalty is
    taken off."""
    turns = _nonempty_turns(lengths, rewards)
    per_token = torch.zeros(sum(turns.lengths), dtype=torch.float64)
    for end, reward in zip(accumulate(turns.lengths), turns.rewards, strict=True):
        per_token[end - 1] = reward
    return per_token if penalties is None else per_token - penalties


def turn_gae(
    lengths: Sequence[int],  # [T] trained tokens of each turn
    rewards: Sequence[float],  # [T]
    values: Tensor,  # [N]
    *,
    gamma: float,
    gae_lambda: float,
    final_value: float = 0.0,
) -> Advantages:
    """`gae` with one step per turn (the turn-level MDP of https://arxiv.org/abs/2512.17008).

    V of a turn is V of the context that its first token was sampled in. All tokens of the turn share its advantage and
    its value target. Returns [N] each.
    """
    turns = _nonempty_turns(lengths, rewards)
    counts = torch.tensor(turns.lengths, dtype=torch.long)  # [T]
    starts = counts.cumsum(0) - counts
    per_turn = gae(
        torch.tensor(turns.rewards, dtype=torch.float64),
        values.cpu()[starts],
        gamma=gamma,
        gae_lambda=gae_lambda,
        final_value=final_value,
    )
    return Advantages(per_turn.advantages.repeat_interleave(counts), per_turn.value_targets.repeat_interleave(counts))


def bilevel_gae(
    lengths: Sequence[int],  # [T] trained tokens of each turn
    rewards: Sequence[float],  # [T]
    values: Tensor,  # [N]
    *,
    gamma: float,
    gae_lambda: float,
    turn_gamma: float,
    turn_gae_lambda: float,
    final_value: float = 0.0,
    penalties: Tensor | None = None,  # [N] taken off the tokens' rewards
) -> Advantages:
    """`gae` over turns, whose result is the reward of a `gae` over the tokens of each turn (VAGEN,
    https://arxiv.org/abs/2510.16907; `compute_bi_level_gae_advantage_return` of RAGEN).

        turn k:            A_k = r_k + gamma_turn V_{k+1} - V_k + gamma_turn lambda_turn A_{k+1}
        its last token:    A_t = (A_k + V_k) - V_t = A_k
        its other tokens:  A_t = gamma V_{t+1} - V_t + gamma lambda A_{t+1}
        value targets:     A_t + V_t

    V_k is V of the context that the last token of turn k was sampled in, as in RAGEN; `turn_gae` takes that of its
    first. After the last turn comes `final_value`. Nothing crosses the end of a turn but A_k: no token bootstraps with
    a value of the next turn. With all four factors 1 and no penalties it is `token_gae` with 1 and 1.

    Departs from RAGEN, which takes every token with a reward other than 0 for the end of a turn, so that a turn of
    reward 0 joins the next, and which has one lambda for both levels. A token's penalty belongs to its turn alone.

    Returns [N] each.
    """
    turns = _nonempty_turns(lengths, rewards)
    ends = torch.tensor(turns.lengths, dtype=torch.long).cumsum(0) - 1  # [T]
    end_values = values.cpu()[ends].tolist()
    per_turn = _gae(turns.rewards, end_values, turn_gamma, turn_gae_lambda, final_value)
    returns = [advantage + value for advantage, value in zip(per_turn, end_values, strict=True)]
    of_turns = zip(
        token_rewards(turns.lengths, returns, penalties).split(turns.lengths),
        values.cpu().split(turns.lengths),
        strict=True,
    )
    per_token = [_gae(own.tolist(), v.tolist(), gamma, gae_lambda, 0.0) for own, v in of_turns]
    advantages = torch.tensor(list(chain.from_iterable(per_token)), dtype=torch.float64)
    return Advantages(advantages.float(), (advantages + values.double().cpu()).float())


def returns_to_go(rewards: Sequence[float], *, gamma: float) -> list[float]:
    """The discounted return from each step on, [S]: R_t = sum_k gamma^k r_{t+k}."""
    return _gae(rewards, [0.0] * len(rewards), gamma, 1.0, 0.0)


def discounted_return(
    lengths: Sequence[int],  # [T] trained tokens of each turn
    rewards: Sequence[float],  # [T]
    *,
    per_token: float = 1.0,
    per_turn: float = 1.0,
) -> float:
    """The return from the first token on, where a turn's reward falls on its last token."""
    turns = _nonempty_turns(lengths, rewards)
    return sum(
        per_turn**turn * per_token ** (end - 1) * reward
        for turn, (end, reward) in enumerate(zip(accumulate(turns.lengths), turns.rewards, strict=True))
    )


class _Turns(NamedTuple):
    lengths: list[int]  # [T'] all positive
    rewards: list[float]  # [T']


def _nonempty_turns(lengths: Sequence[int], rewards: Sequence[float]) -> _Turns:
    """The turns with trained tokens. The reward of a turn without any goes to the turn before it; with none before it
    the reward is dropped, since no sampled token led to it."""
    turns = _Turns([], [])
    for length, reward in zip(lengths, rewards, strict=True):
        if length:
            turns.lengths.append(length)
            turns.rewards.append(reward)
        elif turns.rewards:
            turns.rewards[-1] += reward
    return turns


def group_normalised(returns: Tensor, *, divide_by_std: bool, epsilon: float = 1e-6) -> Tensor:
    """The group-relative advantage of GRPO, section 4.1.2 of https://arxiv.org/abs/2402.03300.

        A_i = (R_i - mean(R)) / (std(R) + epsilon)

    Without the division it is Dr. GRPO's (https://arxiv.org/abs/2503.20783), which does not amplify groups of little
    spread. The standard deviation is the unbiased one, as in TRL and verl. A group of one, or of equal returns, has
    advantage 0.

    Args:
        returns: [G].
        divide_by_std: divide by the standard deviation.
        epsilon: Keeps a group of equal returns finite.
    """
    if returns.numel() < 2:
        return torch.zeros_like(returns, dtype=torch.float32)
    centred = returns.double() - returns.double().mean()
    scale = centred.std() + epsilon if divide_by_std else 1.0
    return (centred / scale).float()


def leave_one_out(returns: Tensor) -> Tensor:
    """Each return minus the mean of the others: the advantage of RLOO, https://arxiv.org/abs/2402.14740.

        A_i = R_i - sum_{j != i} R_j / (G - 1) = G / (G - 1) (R_i - mean(R))

    A group of one has advantage 0.

    Args:
        returns: [G].
    """
    count = returns.numel()
    if count < 2:
        return torch.zeros_like(returns, dtype=torch.float32)
    return ((returns.double() - returns.double().mean()) * (count / (count - 1))).float()


def mean_normalised(outcomes: Tensor) -> Tensor:
    """Outcomes relative to their mean: the advantage of MaxRL, https://arxiv.org/abs/2602.02710.

        A_i = (R_i - mean(R)) / mean(R)

    A group whose mean is 0, and a group of one, has advantage 0.

    Args:
        outcomes: [G], each 0 or 1.
    """
    mean = outcomes.double().mean()
    if outcomes.numel() < 2 or mean == 0:
        return torch.zeros_like(outcomes, dtype=torch.float32)
    return ((outcomes.double() - mean) / mean).float()


def state_relative(returns: Sequence[float], states: Sequence[str], *, divide_by_std: bool) -> Tensor:
    """The step-relative advantage of GiGPO, equations 6 and 7 of https://arxiv.org/abs/2505.10978.

    A turn's return relative to those of all turns that were taken in an equal state, as `group_normalised` does it;
    0 where no other turn was.

    Args:
        returns: [M], from each turn on.
        states: [M], equal where the states are.
        divide_by_std: divide by the standard deviation among equal states.

    Returns [M].
    """
    turns: dict[str, list[int]] = {}
    for turn, state in enumerate(states):
        turns.setdefault(state, []).append(turn)
    precise = torch.tensor(returns, dtype=torch.float64)
    advantages = torch.zeros(len(returns))
    for equal in turns.values():
        advantages[equal] = group_normalised(precise[equal], divide_by_std=divide_by_std)
    return advantages


def whiten(advantages: Tensor, weights: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """Weighted mean 0 and weighted variance 1 over all N tokens.

        A <- (A - m) / sqrt(v + epsilon),   m = sum w A / sum w,   v = sum w (A - m)^2 / sum w

    A token of weight 0 is transformed too, without counting towards m and v. The variance is the biased one: weights
    have no degrees of freedom. If all weights are 0, the advantages stay as they are.

    Args:
        advantages: [N].
        weights: [N], not negative.
        epsilon: Keeps equal advantages finite.
    """
    precise, total = advantages.double(), weights.double().sum()
    if total == 0:
        return advantages
    normalised = weights.double() / total
    centred = precise - (normalised * precise).sum()
    return (centred / ((normalised * centred.square()).sum() + epsilon).sqrt()).to(advantages.dtype)
