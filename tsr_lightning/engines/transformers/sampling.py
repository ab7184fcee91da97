"""Sampling by inverse CDF, with uniform draws that come from seeds. Pure functions."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.base import Response

_BLOCK = 256  # numbers that one product adds up
_LEAST = 1e-6  # of the probability of a token's alternatives; with less, rounding would decide


def sample(
    logits: Tensor,
    rows: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    temperature: float,
    removed: Sequence[Mapping[int, float]] = (),
) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities.

    Args:
        logits: [U, V].
        rows: [N] the row of logits for each sample.
        uniforms: [N] in [0, 1).
        temperature: of the softmax; 0 takes the most likely token, and removes nothing.
        removed: [N] by token, the part of its probability that is not sampled from (`removed_parts`); or nothing. The
            log-probabilities are those without it.
    """
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    row = torch.from_numpy(rows).to(logits.device)
    if temperature == 0:
        tokens = logprobs.argmax(dim=-1).index_select(0, row)
    else:
        # The CDF of row u goes from u to u + 1, so that one search over all rows, one after the other, is enough.
        chances = logprobs.double().exp()
        if any(removed):
            chances, rows = _with_rows_of_their_own(chances, rows, removed)
        (count, size), own_row = chances.shape, torch.from_numpy(rows).to(logits.device)
        cdf = _running_sums(chances)
        cdf = cdf / cdf[:, -1:] + torch.arange(count, dtype=torch.float64, device=cdf.device)[:, None]
        heights = torch.from_numpy(np.minimum(uniforms + rows, np.nextafter(rows + 1.0, 0))).to(logits.device)
        tokens = torch.searchsorted(cdf.view(-1), heights, right=True) - own_row * size
        tokens = tokens.clamp(0, size - 1)
    return tokens.tolist(), logprobs[row, tokens].tolist()


def removed_parts(ids: Sequence[int], excluded: Sequence[Response]) -> dict[int, float]:
    """By token, the part of its probability after `ids` that belongs to excluded responses: of a response that begins
    so and goes on with the token, the probability of its rest. Sampling without them token by token is sampling from
    all other responses (Shi et al. 2020, https://arxiv.org/abs/2002.09067)."""
    place, parts = len(ids), dict[int, float]()
    for response in set(excluded):
        if len(response.ids) > place and response.ids[:place] == tuple(ids):
            token = response.ids[place]
            parts[token] = parts.get(token, 0.0) + math.exp(math.fsum(response.logprobs[place + 1 :]))
    return parts


def _with_rows_of_their_own(
    chances: Tensor, rows: NDArray[np.int64], removed: Sequence[Mapping[int, float]]
) -> tuple[Tensor, NDArray[np.int64]]:
    """Probabilities [U + M, V] with a further row for each sample that something is removed from, and the rows [N]."""
    changed = [i for i, parts in enumerate(removed) if parts]
    own = chances[torch.from_numpy(rows[changed]).to(chances.device)]
    whole = own.clone()
    for row, i in enumerate(changed):
        for token, part in removed[i].items():
            own[row, token] *= max(0.0, 1.0 - part)
    exhausted = own.sum(dim=-1) < _LEAST
    rows = rows.copy()
    rows[changed] = len(chances) + np.arange(len(changed))
    return torch.cat([chances, torch.where(exhausted[:, None], whole, own)]), rows


def _running_sums(x: Tensor) -> Tensor:
    """Along the last dimension. On a GPU PyTorch's own is not deterministic, and raises where that is asked for."""
    return product_sums(x) if x.is_cuda and torch.are_deterministic_algorithms_enabled() else x.cumsum(dim=-1)


def product_sums(x: Tensor) -> Tensor:
    """The running sums of x [U, V] by products with triangles of ones: within blocks, and of the blocks before."""
    count, size = x.shape
    blocks = torch.nn.functional.pad(x, (0, -size % _BLOCK)).view(count, -1, _BLOCK)
    within = blocks @ x.new_ones(_BLOCK, _BLOCK).triu()
    totals = within[:, :, -1]
    before = totals @ x.new_ones(totals.shape[1], totals.shape[1]).triu(diagonal=1)
    return (within + before[:, :, None]).flatten(1)[:, :size]
