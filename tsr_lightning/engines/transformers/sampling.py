"""Sampling by inverse CDF, with uniform draws that come from seeds. Pure functions.

The vocabulary is in blocks: a draw selects a block by the cumulative sums of the blocks, then a token by those within
it. So float64 sums run over one block per sample, and not over the vocabulary per prefix.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.base import Response
from tsr_lightning.modeling.kernels import Operators

_LEAST = 1e-6  # of the probability of a token's alternatives; with less, rounding would decide


def sample(
    logits: Tensor,
    rows: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    temperature: float,
    operators: Operators,
    removed: Sequence[Mapping[int, float]] = (),
) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities.

    Args:
        logits: [U, V].
        rows: [N] the row of logits for each sample.
        uniforms: [N] in [0, 1).
        temperature: of the softmax; 0 takes the most likely token, and removes nothing.
        operators: sum over the vocabulary.
        removed: [N] by token, the part of its probability that is not sampled from (`removed_parts`); or nothing. The
            log-probabilities are those without it.
    """
    blocks = _Blocks.of(logits, temperature or 1.0, operators)
    row = torch.from_numpy(rows).to(logits.device)
    if temperature == 0:
        tokens = logits.argmax(dim=-1).index_select(0, row)
    else:
        heights = torch.from_numpy(uniforms).to(logits.device)
        tokens = _drawn(blocks, row, heights, removed).clamp_(max=logits.shape[1] - 1)
    logprobs = blocks.scaled(row, tokens).double() - blocks.sums.sum(dim=-1).log()[row]
    return tokens.tolist(), logprobs.float().tolist()


@dataclass(frozen=True)
class _Blocks:
    """The vocabulary in B blocks of K tokens. A weight is a probability relative to the most likely token's."""

    logits: Tensor  # [U, V]
    temperature: float
    size: int  # K, a power of two near the root of V
    highest: Tensor  # [U] logit, in float32
    sums: Tensor  # [U, B] of the weights, in float64

    @classmethod
    def of(cls, logits: Tensor, temperature: float, operators: Operators) -> "_Blocks":
        size = 1 << logits.shape[1].bit_length() // 2
        highest, sums = operators.block_sums(logits, size, temperature)
        return cls(logits, temperature, size, highest, sums.double())

    def scaled(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Logits below the highest, by the temperature: rows and tokens [...] -> [...]."""
        below = self.logits[rows, tokens].float() - self.highest[rows]
        return below if self.temperature == 1 else below / self.temperature

    def weights(self, rows: Tensor, blocks: Tensor) -> Tensor:
        """The tokens' weights in blocks [N]: [N, K] float64, zero beyond the vocabulary."""
        tokens = blocks[:, None] * self.size + torch.arange(self.size, device=blocks.device)
        inside, last = tokens < self.logits.shape[1], self.logits.shape[1] - 1
        return self.scaled(rows[:, None], tokens.clamp(max=last)).exp_().double() * inside


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


def _drawn(blocks: _Blocks, row: Tensor, heights: Tensor, removed: Sequence[Mapping[int, float]]) -> Tensor:
    """The tokens [N] at heights [N] of their rows' cumulative probabilities.

    Args:
        blocks: of the vocabulary.
        row: [N] of each sample.
        heights: [N] in [0, 1).
        removed: as of `sample`.
    """
    sums = blocks.sums.index_select(0, row)  # [N, B]
    kept = _kept(blocks, sums, row, removed) if any(removed) else None
    if kept is not None:
        sums = sums.index_put((kept.sample, kept.block), kept.weights.sum(dim=-1))
    below = _running_sums(sums)
    heights = heights * below[:, -1]
    block = _place(below, heights)
    heights = (heights - (below - sums).gather(1, block[:, None])[:, 0]).clamp_(min=0.0)  # rounding may leave less
    within = blocks.weights(row, block)  # [N, K]
    if kept is not None:
        drawn = block[kept.sample] == kept.block
        within[kept.sample[drawn]] = kept.weights[drawn]
    return block * blocks.size + _place(_running_sums(within), heights)


class _Kept(NamedTuple):
    """P blocks without what is removed from them."""

    sample: Tensor  # [P]
    block: Tensor  # [P]
    weights: Tensor  # [P, K]


def _kept(blocks: _Blocks, sums: Tensor, row: Tensor, removed: Sequence[Mapping[int, float]]) -> _Kept:
    """The blocks that something is removed from. Nothing is removed from a sample if too little would be left."""
    size = blocks.size
    entries = [(i, *divmod(token, size), part) for i, parts in enumerate(removed) for token, part in parts.items()]
    pairs = {pair: place for place, pair in enumerate(dict.fromkeys((i, block) for i, block, _, _ in entries))}
    sample, block = torch.tensor(list(pairs), device=row.device).unbind(dim=1)
    whole = blocks.weights(row[sample], block)
    places = [pairs[i, of_block] for i, of_block, _, _ in entries]
    tokens = [token for _, _, token, _ in entries]
    shares = torch.ones_like(whole)
    shares[places, tokens] = whole.new_tensor([max(0.0, 1.0 - part) for *_, part in entries])
    left = sums.index_put((sample, block), (whole * shares).sum(dim=-1)).sum(dim=-1)
    exhausted = (left < _LEAST * sums.sum(dim=-1))[sample]
    return _Kept(sample, block, torch.where(exhausted[:, None], whole, whole * shares))


def _place(running: Tensor, heights: Tensor) -> Tensor:
    """The first place [N] whose running sum [N, B] is above a height [N]. Where rounding leaves none, the last place
    that adds to the sum."""
    found = torch.searchsorted(running, heights[:, None], right=True)
    last = torch.searchsorted(running, running[:, -1:].contiguous())  # the first that has the whole sum
    return torch.minimum(found, last)[:, 0].clamp_(max=running.shape[1] - 1)  # beyond it where sums are not finite


def _running_sums(x: Tensor) -> Tensor:
    """Along the last dimension. On a GPU PyTorch's own is not deterministic, and raises where that is asked for."""
    return product_sums(x) if x.is_cuda else x.cumsum(dim=-1)


def product_sums(x: Tensor) -> Tensor:
    """The running sums of x [N, B] by a product with a triangle of ones."""
    return x @ x.new_ones(x.shape[1], x.shape[1]).triu()
