"""The hardware's floor: the fewest tokens, times what a token costs, over the machine's measured rate of products.

Linear layers, attention and the output embedding are counted; norms, activations, sampling, memory and Python are not.
Attention is taken to run at the rate of the large products, which flatters the floor.
"""

import time
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.performance.trie import Trie
from benchmarks.performance.workload import DTYPES, Shape, Workload

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


def floor_seconds(trie: Trie, shape: Shape, rates: Rates) -> float:
    linear = 2 * shape.layers * shape.layer_parameters
    per_key = 4 * shape.layers * shape.hidden  # a product with the key and one with the value
    head = 2 * shape.hidden * shape.vocabulary
    prompts = trie.in_prompts * linear + trie.keys * per_key
    responses = trie.in_responses * linear + trie.sampled * head
    return prompts / rates.prefill + responses / rates.decode


@torch.no_grad()
def _rate(shape: Shape, rows: int, dtype: str) -> float:
    """All the products of a layer, one after the other."""
    width = shape.hidden // shape.heads * shape.key_heads
    sizes = [(shape.hidden, shape.hidden)] * 2 + [(shape.hidden, width)] * 2
    sizes += [(shape.hidden, shape.intermediate)] * 2 + [(shape.intermediate, shape.hidden)]
    pairs = [
        (torch.randn(rows, inner).to(DTYPES[dtype]), torch.randn(outer, inner).to(DTYPES[dtype]))
        for inner, outer in sizes
    ]
    best = 0.0
    for _ in range(3):
        passes = 0
        started = time.perf_counter()
        while time.perf_counter() - started < _SECONDS:
            for left, right in pairs:
                functional.linear(left, right)
            passes += 1
        flops = 2 * rows * passes * sum(inner * outer for inner, outer in sizes)
        best = max(best, flops / (time.perf_counter() - started))
    return best
