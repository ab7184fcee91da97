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
        cdf = logprobs.double().exp().cumsum(dim=-1)
        cdf = cdf / cdf[:, -1:] + torch.arange(count, dtype=torch.float64, device=cdf.device)[:, None]
        heights = torch.from_numpy(np.minimum(uniforms + rows, np.nextafter(rows + 1.0, 0))).to(logits.device)
        tokens = torch.searchsorted(cdf.view(-1), heights, right=True) - row * size
        tokens = tokens.clamp(0, size - 1)
    return tokens.tolist(), logprobs[row, tokens].tolist()
