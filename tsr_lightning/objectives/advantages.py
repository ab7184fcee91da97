"""Advantages as pure functions of rewards, values and returns.

Knows neither groups nor objectives. S is a number of steps, T the turns of a trajectory, N its trained tokens (turn
after turn), G the trajectories of a group. Results are float32, intermediate sums float64. GAE returns CPU tensors.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    """An estimate per step or per token."""

    advantages: Tensor  # [S] or [N]
    value_targets: Tensor  # the same shape: the critic's regression target


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
    next_value = final_value
    advantage = 0.0
    backwards = []
    # Python floats: a recursion over one-element tensors would be a hundred times slower.
    for reward, value in zip(reversed(rewards.tolist()), reversed(values.tolist()), strict=True):
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * advantage
        next_value = value
        backwards.append(advantage)
    advantages = torch.tensor(backwards[::-1], dtype=torch.float64)
    return Advantages(advantages.float(), (advantages + values.double().cpu()).float())


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
    turns = _nonempty_turns(lengths, rewards)
    per_token = torch.zeros(sum(turns.lengths), dtype=torch.float64)
    for end, reward in zip(accumulate(turns.lengths), turns.rewards, strict=True):
        per_token[end - 1] = reward
    if penalties is not None:
        per_token -= penalties
    return gae(per_token, values, gamma=gamma, gae_lambda=gae_lambda, final_value=final_value)


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


def group_normalised(returns: Tensor, *, normalise_std: bool, epsilon: float = 1e-6) -> Tensor:
    """The group-relative advantage of GRPO, section 4.1.2 of https://arxiv.org/abs/2402.03300.

        A_i = (R_i - mean(R)) / (std(R) + epsilon)

    Without the division it is Dr. GRPO's (https://arxiv.org/abs/2503.20783), which does not amplify groups of little
    spread. The standard deviation is the unbiased one, as in TRL and verl. A group of one, or of equal returns, has
    advantage 0.

    Args:
        returns: [G].
        normalise_std: Whether to divide by the standard deviation.
        epsilon: Keeps a group of equal returns finite.
    """
    if returns.numel() < 2:
        return torch.zeros_like(returns, dtype=torch.float32)
    centred = returns.double() - returns.double().mean()
    scale = centred.std() + epsilon if normalise_std else 1.0
    return (centred / scale).float()


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
