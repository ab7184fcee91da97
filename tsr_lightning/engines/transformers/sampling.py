"""From distributions to tokens: by inverse CDF, with draws that come from keys. Pure functions."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def draw(
    logits: Tensor, owners: NDArray[np.int64], draws: NDArray[np.float64], temperature: float
) -> tuple[list[int], list[float]]:
    """Tokens by inverse CDF, and their log-probabilities.

    Args:
        logits: [U, V].
        owners: [N] the distribution that each draw is from.
        draws: [N] in [0, 1).
        temperature: of the softmax; 0 takes the most likely token.
    """
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    rows = torch.from_numpy(owners).to(logits.device)
    if temperature == 0:
        tokens = logprobs.argmax(dim=-1).index_select(0, rows)
    else:
        # the steps of row u, from u to u + 1, one row after the other: one search for all
        count, size = logprobs.shape
        steps = logprobs.double().exp().cumsum(dim=-1)
        steps = steps / steps[:, -1:] + torch.arange(count, dtype=torch.float64, device=steps.device)[:, None]
        heights = torch.from_numpy(np.minimum(draws + owners, np.nextafter(owners + 1.0, 0))).to(logits.device)
        tokens = torch.searchsorted(steps.view(-1), heights, right=True) - rows * size
        tokens = tokens.clamp(0, size - 1)
    return tokens.tolist(), logprobs[rows, tokens].tolist()
