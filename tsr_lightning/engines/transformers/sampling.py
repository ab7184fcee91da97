"""Sampling by inverse CDF, with uniform draws that come from seeds. Pure functions."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sample(
    logits: Tensor, rows: NDArray[np.int64], uniforms: NDArray[np.float64], temperature: float
) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities.

    Args:
        logits: [U, V].
        rows: [N] the row of logits for each sample.
        uniforms: [N] in [0, 1).
        temperature: of the softmax; 0 takes the most likely token.
    """
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    row = torch.from_numpy(rows).to(logits.device)
    if temperature == 0:
        tokens = logprobs.argmax(dim=-1).index_select(0, row)
    else:
        # The CDF of row u goes from u to u + 1, so that one search over all rows, one after the other, is enough.
        count, size = logprobs.shape
        cdf = _running_sums(logprobs.double().exp())
        cdf = cdf / cdf[:, -1:] + torch.arange(count, dtype=torch.float64, device=cdf.device)[:, None]
        heights = torch.from_numpy(np.minimum(uniforms + rows, np.nextafter(rows + 1.0, 0))).to(logits.device)
        tokens = torch.searchsorted(cdf.view(-1), heights, right=True) - row * size
        tokens = tokens.clamp(0, size - 1)
    return tokens.tolist(), logprobs[row, tokens].tolist()


_BLOCK = 256  # numbers that one product adds up


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
