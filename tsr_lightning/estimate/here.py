"""The machine that this process runs on: its free memory, and its speeds where they are asked for."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from tsr_lightning.engines.transformers.engine import KEPT_BYTES
from tsr_lightning.estimate.cards import Card
from tsr_lightning.free_memory import free_bytes, total_bytes

_GIB = 2**30
_UNKNOWN = 0.0  # speeds, which memory does not depend on
_CPU_CONTEXT_GIB = 0.6  # of Python, PyTorch and Lightning
_CPU_FRAGMENTATION = 0.15  # what glibc holds free; SmolLM2 under a beam had up to 0.13 in 200 epochs
_CPU_RESPONSE_SECONDS = 38e-6  # measured on one core of this project's machine
_DTYPES = (torch.float32, torch.bfloat16)
_COPIED = 64 * 2**20  # bytes, more than a processor's caches hold
_SMALL_OPERATORS = 1000
_TIMES = 3


def card_here(device: torch.device, ranks: int = 1) -> Card:
    """Returns the device with its free memory; on a CPU, what a container's limit leaves of it.

    Args:
        device: of a run.
        ranks: that train together; on a CPU they share its memory.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return Card(name, free / _GIB, _UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN, context_gib=0.0)  # it is in use already
    return Card(
        "this machine",
        free_bytes() / ranks / _GIB,
        *(_UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN),
        context_gib=_CPU_CONTEXT_GIB,
        fragmentation=_CPU_FRAGMENTATION,
        kept_cache_mib=KEPT_BYTES // 2**20,
        response_seconds=_CPU_RESPONSE_SECONDS,
        is_gpu=False,
    )


def whole_card(device: torch.device, ranks: int = 1) -> Card:
    """Returns the device with its total memory, so that what is chosen by it does not depend on what else runs.

    Args:
        device: of a run.
        ranks: that train together; on a CPU they share its memory.
    """
    if device.type == "cuda":
        return replace(card_here(device), memory_gib=torch.cuda.get_device_properties(device).total_memory / _GIB)
    return replace(card_here(device), memory_gib=total_bytes() / ranks / _GIB)


def measured_card(device: torch.device) -> Card:
    """Returns `card_here` with measured speeds of matrix products, copies and small operators; a second on a CPU.

    The shares of the peak that training reaches are 1, since these speeds were reached.
    """
    size = 1024 if device.type == "cpu" else 8192
    flops = {dtype: 2 * size**3 / _least_seconds(_product(size, dtype, device), device) for dtype in _DTYPES}
    source = torch.ones(_COPIED // 4, device=device)
    target = torch.empty_like(source)
    copied = 2 * _COPIED / _least_seconds(lambda: target.copy_(source), device)
    small = torch.zeros(16, device=device)

    def operators() -> None:
        for _ in range(_SMALL_OPERATORS):
            small.add_(1.0)

    return replace(
        card_here(device),
        bfloat16=flops[torch.bfloat16],
        float32=flops[torch.float32],
        bandwidth=copied,
        compute_share=1.0,
        bandwidth_share=1.0,
        operator_seconds=_least_seconds(operators, device) / _SMALL_OPERATORS,
    )


def _product(size: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return lambda: left @ right


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    """The fewest seconds of several timed calls, after a warm-up."""
    work()
    times = []
    for _ in range(_TIMES):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
