"""The terms of a loss as pure functions of tensors [N]."""

from typing import NamedTuple

import torch
from torch import Tensor

# e^20 is finite in float32, and far outside any clip. A token beyond it has no gradient through the ratio.
LOG_RATIO_LIMIT = 20.0

_LEAST_NATS = 1e-7  # a probability of 1 is rounded: the logarithm of the others' has to be finite


class ClippedLoss(NamedTuple):
    """A clipped loss per token."""

    losses: Tensor  # [N]
    is_clipped: Tensor  # [N] bool: the clip is active, so there is no gradient


class SurrogateLoss(NamedTuple):
    """A policy loss per token, and what its clip did."""

    losses: Tensor  # [N]
    log_ratios: Tensor  # [N] detached: log of the importance ratios that the clip looks at
    clipped_low: Tensor  # [N] bool: the clip is active below a ratio of 1
    clipped_high: Tensor  # [N] bool: the clip is active above a ratio of 1

    @property
    def is_clipped(self) -> Tensor:
        """[N] bool: the clip is active. There is then no gradient, but in `clipped_weight`."""
        return self.clipped_low | self.clipped_high


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log(pi / pi_old), limited so that its exponential is finite in float32."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k2(log_ratios: Tensor) -> Tensor:
    """The estimator k2 of KL(p || q) from samples of p, given log(q / p): (log r)^2 / 2 with r = q / p.

    Its value is biased, by little where p and q are near: http://joschu.net/blog/kl-approx.html. Its gradient with
    respect to p is in expectation that of KL(p || q).
    """
    return log_ratios.square() / 2


def k3(log_ratios: Tensor) -> Tensor:
    """The estimator k3 of KL(p || q) from samples of p, given log(q / p): r - 1 - log r with r = q / p.

    Unbiased and never negative: http://joschu.net/blog/kl-approx.html. Written with expm1, since r - 1 cancels in
    float32 near r = 1.
    """
    return torch.expm1(log_ratios) - log_ratios


def binary_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """KL(pi_old || pi) of the token against all others, section 4 of https://arxiv.org/abs/2602.04879 (DPPO):
    p log(p / q) + (1 - p) log((1 - p) / (1 - q)) with p = pi_old(token) and q = pi(token).

    A lower bound of the KL in the token's state, whoever chose the token. k3 is an estimate for tokens that pi_old
    sampled; over tokens that a search chose, those that gained most are too many, and it may be nats too large.

    Args:
        logprobs: [N] log pi.
        old_logprobs: [N] log pi_old.
    """
    new, old = (x.double().clamp(max=-_LEAST_NATS) for x in (logprobs, old_logprobs))
    chosen, others = old.exp(), -torch.expm1(old)
    kl = chosen * (old - new) + others * (others.log() - torch.log(-torch.expm1(new)))
    return kl.clamp(min=0).to(logprobs.dtype)


def clipped_surrogate(
    log_ratios: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> SurrogateLoss:
    """Equation 7 of https://arxiv.org/abs/1707.06347 with the two widths of https://arxiv.org/abs/2503.14476 (DAPO):
    -min(r A, clip(r, 1 - low, 1 + high) A).

    With `dual` = c, equation 5 of https://arxiv.org/abs/1912.09729 too: where A < 0, at most -c A. Without it the loss
    of a bad token grows with its ratio, without bound.
    """
    ratios = log_ratios.exp()
    losses = -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    clipped_low = (advantages < 0) & (ratios < 1 - low)
    clipped_high = (advantages > 0) & (ratios > 1 + high)
    if dual is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual * advantages), losses)
        clipped_high = clipped_high | ((advantages < 0) & (ratios > dual))
    return SurrogateLoss(losses, log_ratios.detach(), clipped_low, clipped_high)


def soft_gate(log_ratios: Tensor, advantages: Tensor, *, positive: float, negative: float) -> SurrogateLoss:
    """SAPO, https://arxiv.org/abs/2511.20347: -(4 / tau) sigmoid(tau (r - 1)) A, with tau = positive where A > 0 and
    negative elsewhere. Its gradient is that of -r A at r = 1, and fades on both sides of it."""
    ratios = log_ratios.exp()
    tau = torch.where(advantages > 0, advantages.new_tensor(positive), advantages.new_tensor(negative))
    losses = -torch.sigmoid(tau * (ratios - 1)) * advantages * 4 / tau
    never = torch.zeros_like(ratios, dtype=torch.bool)
    return SurrogateLoss(losses, log_ratios.detach(), never, never)


def geometric_mean(log_ratios: Tensor, advantages: Tensor, turn_starts: Tensor, *, width: float) -> SurrogateLoss:
    """GMPO, https://arxiv.org/abs/2507.20673, with the turn as the sequence: -A times the geometric mean of the turn's
    ratios, each clipped to [exp(-width), exp(width)] on the side that its advantage moves it to. Tokens whose advantage
    is 0, as masks make it, are not in the mean, through which the others would train them."""
    clipped_low = (advantages < 0) & (log_ratios < -width)
    clipped_high = (advantages > 0) & (log_ratios > width)
    clipped = torch.where(clipped_low | clipped_high, log_ratios.clamp(-width, width), log_ratios)
    teaches = advantages != 0
    counted = teaches | (_turn_sums(teaches.to(clipped.dtype), turn_starts) == 0)  # of a turn that teaches nothing all
    sums = _turn_sums(clipped.where(counted, 0.0), turn_starts)
    means = sums / _turn_sums(counted.to(clipped.dtype), turn_starts)
    return SurrogateLoss(-means.exp() * advantages, means.detach(), clipped_low, clipped_high)


def _turn_sums(values: Tensor, turn_starts: Tensor) -> Tensor:
    """The sum [N] over the turn of each token."""
    starts = turn_starts.nonzero().squeeze(1)
    lengths = torch.diff(starts, append=starts.new_tensor([len(turn_starts)]))
    # Its checks, which `unsafe` leaves out, fail without tokens.
    return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True).repeat_interleave(lengths)


def turn_log_ratios(logprobs: Tensor, log_ratios: Tensor, turn_starts: Tensor) -> Tensor:
    """The log of GSPO-token's ratio, equation 14 of https://arxiv.org/abs/2507.18071, with the turn as the sequence:
    log(sg[s] pi / sg[pi]), s = exp(mean of log(pi / pi_old) over the tokens of the turn).

    Its value is log s, the same for all tokens of a turn, and its gradient is that of the token's own log pi.

    Args:
        logprobs: [N] log pi.
        log_ratios: [N] log(pi / pi_old).
        turn_starts: [N] 1 at the first token of each turn, 0 at the others; the first token starts a turn.
    """
    values = log_ratios.detach()
    means = _turn_sums(values, turn_starts) / _turn_sums(torch.ones_like(values), turn_starts)
    return means + (logprobs - logprobs.detach())  # the difference is exactly 0


def clipped_weight(
    logprobs: Tensor, log_ratios: Tensor, advantages: Tensor, *, low: float | None, high: float
) -> SurrogateLoss:
    """CISPO, equations 4 and 5 of https://arxiv.org/abs/2506.13585: -sg[clip(r, 1 - low, 1 + high)] A log pi.

    `low` = None has no lower bound. A clip only limits the weight of a token, so the gradient is not zero where it is
    active, and whether it is does not depend on the advantage.
    """
    ratios = log_ratios.detach().exp()
    lowest = 0.0 if low is None else 1 - low
    losses = -ratios.clamp(lowest, 1 + high) * advantages * logprobs
    return SurrogateLoss(losses, log_ratios.detach(), ratios < lowest, ratios > 1 + high)


def clipped_value_loss(values: Tensor, old_values: Tensor, value_targets: Tensor, *, clip: float | None) -> ClippedLoss:
    """Half the larger of the squared errors of the value and of the value clipped to within `clip` of the old one.

        max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2

    Not in the PPO paper but in its authors' code; detail 9 of
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details. `None` is the plain squared error.
    """
    unclipped = (values - value_targets).square()
    if clip is None:
        return ClippedLoss(unclipped / 2, torch.zeros_like(unclipped, dtype=torch.bool))
    change = values - old_values
    clipped = (old_values + change.clamp(-clip, clip) - value_targets).square()
    # Rounding makes `clipped` differ from `unclipped` even where no clip is active, so their order alone is not enough.
    return ClippedLoss(torch.maximum(unclipped, clipped) / 2, (change.abs() > clip) & (clipped > unclipped))
