"""The hardware's floor: the fewest tokens, times what a token costs, over the machine's measured rate of products.

Linear layers, attention and the output embedding are counted; norms, activations, sampling, memory and Python are not.
The last layer gives keys and values for every token, and the rest of it is needed where something is sampled alone; its
attention is left out. Attention is taken to run at the rate of the large products, and that rate is the better of
PyTorch's own and oneDNN's, which flatters the floor.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.performance.trie import Trie
from benchmarks.performance.workload import DTYPES, ModelShape, Workload
from tsr_lightning.modeling.kernels import Kernels, Operators
from tsr_lightning.policy.spec import DtypeName

PREFILL_ROWS = 4096
_SECONDS = 0.3  # that each product is repeated for


@dataclass(frozen=True)
class Rates:
    """Measured FLOP/s of the model's own products."""

    prefill: float  # with many rows
    decode: float  # with as many rows as a wave has responses


def measured(work: Workload) -> Rates:
    """On this machine, with the threads that torch has now."""
    return Rates(_rate(work.shape, PREFILL_ROWS, work.dtype), _rate(work.shape, work.rows, work.dtype))


def floor_seconds(trie: Trie, shape: ModelShape, rates: Rates) -> float:
    kept = 2 * shape.hidden * (shape.hidden // shape.heads * shape.key_heads)  # weights of a layer's keys and values
    token = 2 * ((shape.layers - 1) * shape.layer_parameters + kept)
    end = 2 * (shape.layer_parameters - kept + shape.hidden * shape.vocabulary)
    per_key = 4 * (shape.layers - 1) * shape.hidden  # a product with the key and one with the value
    prompts = trie.in_prompts * token + trie.keys * per_key
    responses = trie.in_responses * token + trie.sampled * end
    return prompts / rates.prefill + responses / rates.decode


@torch.no_grad()
def _rate(shape: ModelShape, rows: int, dtype: DtypeName) -> float:
    """All the products of a layer, one after the other, by whoever is the fastest."""
    width = shape.hidden // shape.heads * shape.key_heads
    sizes = [(shape.hidden, shape.hidden)] * 2 + [(shape.hidden, width)] * 2
    sizes += [(shape.hidden, shape.intermediate)] * 2 + [(shape.intermediate, shape.hidden)]
    pairs = [
        (nn.Linear(inner, outer, bias=False, dtype=DTYPES[dtype]), torch.randn(rows, inner).to(DTYPES[dtype]))
        for inner, outer in sizes
    ]
    flops = 2 * rows * sum(inner * outer for inner, outer in sizes)
    ways = [kernels.operators(pairs[0][1]) for kernels in (Kernels.TORCH, Kernels.AUTO)]
    return flops * max(_passes_a_second(use, pairs) for use in ways for _ in range(3))


def _passes_a_second(use: Operators, pairs: Sequence[tuple[nn.Linear, Tensor]]) -> float:
    passes = 0
    started = time.perf_counter()
    while time.perf_counter() - started < _SECONDS:
        for layer, rows in pairs:
            use.linear(layer, rows)
        passes += 1
    return passes / (time.perf_counter() - started)
