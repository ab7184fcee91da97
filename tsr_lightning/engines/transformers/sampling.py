"""Sampling by inverse CDF, with uniform draws that come from seeds. Pure functions.

The vocabulary is in blocks: a draw selects a block by the cumulative sums of the blocks, then a token by those within
it. So float64 sums run over one block per sample, and not over the vocabulary per prefix.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tsr_lightning.engines.base import Response

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
    logits = logits.float()
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    row = torch.from_numpy(rows).to(logits.device)
    highest = logits.amax(dim=-1, keepdim=True)
    blocks = _in_blocks((logits - highest).exp_())  # [U, B, K], the most likely token's is 1
    sums = blocks.sum(dim=-1).double()  # [U, B]; a sum in float64 would copy all of them first
    if temperature == 0:
        tokens = logits.argmax(dim=-1).index_select(0, row)
    else:
        heights = torch.from_numpy(uniforms).to(logits.device)
        tokens = _drawn(blocks, sums, row, heights, removed).clamp_(max=logits.shape[1] - 1)
    logprobs = (logits[row, tokens] - highest[row, 0]).double() - sums.sum(dim=-1).log()[row]
    return tokens.tolist(), logprobs.float().tolist()


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


def _in_blocks(x: Tensor) -> Tensor:
    """[U, V] -> [U, B, K], with zeros at the end; K is a power of two near the root of V."""
    size = 1 << x.shape[1].bit_length() // 2
    missing = -x.shape[1] % size
    return (functional.pad(x, (0, missing)) if missing else x).view(len(x), -1, size)


def _drawn(
    blocks: Tensor, sums: Tensor, row: Tensor, heights: Tensor, removed: Sequence[Mapping[int, float]]
) -> Tensor:
    """The tokens [N] at heights [N] of their rows' cumulative probabilities.

    Args:
        blocks: [U, B, K] probabilities, not normalized.
        sums: [U, B] theirs.
        row: [N] of each sample.
        heights: [N] in [0, 1).
        removed: as of `sample`.
    """
    sums = sums.index_select(0, row)  # [N, B]
    kept = _kept(blocks, sums, row, removed) if any(removed) else None
    if kept is not None:
        sums = sums.index_put((kept.sample, kept.block), kept.probabilities.sum(dim=-1))
    below = _running_sums(sums)
    heights = heights * below[:, -1]
    block = _place(below, heights)
    heights = (heights - (below - sums).gather(1, block[:, None])[:, 0]).clamp_(min=0.0)  # rounding may leave less
    within = blocks[row, block].double()  # [N, K]
    if kept is not None:
        drawn = block[kept.sample] == kept.block
        within[kept.sample[drawn]] = kept.probabilities[drawn]
    return block * blocks.shape[-1] + _place(_running_sums(within), heights)


class _Kept(NamedTuple):
    """P blocks without what is removed from them."""

    sample: Tensor  # [P]
    block: Tensor  # [P]
    probabilities: Tensor  # [P, K]


def _kept(blocks: Tensor, sums: Tensor, row: Tensor, removed: Sequence[Mapping[int, float]]) -> _Kept:
    """The blocks that something is removed from. Nothing is removed from a sample if too little would be left."""
    size = blocks.shape[-1]
    entries = [(i, *divmod(token, size), part) for i, parts in enumerate(removed) for token, part in parts.items()]
    pairs = {pair: place for place, pair in enumerate(dict.fromkeys((i, block) for i, block, _, _ in entries))}
    sample, block = torch.tensor(list(pairs), device=row.device).unbind(dim=1)
    whole = blocks[row[sample], block].double()
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
