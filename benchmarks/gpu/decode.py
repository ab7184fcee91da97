"""Decode steps of our engine beside the roofline: what a step must read, over the rate at which the card copies.

A step reads every weight once, each group's prompt once and each branch's own tokens: siblings share their prompt. A
branch's recurrent state, where the model has any, it reads and writes. The bandwidth is measured by copying, not taken
from a table. Sampling, the prefix trie and Python are in the measured seconds, and not in the roofline's.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import Reads
from benchmarks.performance.ours import sit_down
from benchmarks.performance.workload import DTYPES, Workload, peak_mib
from tsr_lightning.engines.base import Engine, Prompt
from tsr_lightning.policy.spec import DtypeName


@dataclass(frozen=True)
class Steps:
    """Which steps are measured."""

    prompts: int
    siblings: int
    prompt_tokens: int
    response_tokens: int

    @property
    def branches(self) -> int:
        return self.prompts * self.siblings

    def read_bytes(self, reads: Reads, dtype: DtypeName) -> int:
        """Bytes of weights, keys, values and states that all steps read at least; the first token needs no step."""
        steps = self.response_tokens - 1
        prompts = steps * self.prompts * self.prompt_tokens
        responses = self.branches * steps * (steps + 1) // 2
        states = self.branches * steps
        return reads.bytes(DTYPES[dtype].itemsize, passes=steps, seen=prompts + responses, states=states)


@dataclass(frozen=True)
class Decoded:
    """What they took."""

    steps: Steps
    dtype: str
    kernels: str
    seconds: float  # of the steps alone: prefill and the first token are taken off
    roofline_seconds: float
    peak_mib: float | None

    @property
    def tokens_per_second(self) -> float:
        return self.steps.branches * (self.steps.response_tokens - 1) / self.seconds

    @property
    def roofline_share(self) -> float:
        return self.roofline_seconds / self.seconds

    def as_json(self) -> dict[str, Any]:
        figures = {"tokens_per_second": self.tokens_per_second, "roofline_share": self.roofline_share}
        return {**asdict(self), **figures}


def bandwidth(device: str, mib: int, laps: int = 20) -> float:
    """Bytes per second that a copy reads and writes together, at best."""
    source = torch.empty(mib * 2**20, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    best = min(timed(device, lambda: target.copy_(source)) for _ in range(laps))
    return 2 * source.nbytes / best


def measure(steps: Steps, work: Workload, reads: Reads, folder: Path, rate: float, laps: int) -> Decoded:
    """The best of several laps, each with prompts of its own.

    Args:
        steps: what is measured.
        work: the model's type, device and kernels.
        reads: of the model.
        folder: the model.
        rate: bytes per second that the device reads.
        laps: after one that warms up.
    """
    if work.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seat = sit_down(work, folder)
    wholes, firsts = [], []
    for lap in range(laps + 1):
        wholes.append(_generate(seat.engine, steps, work.device, 2 * lap, steps.response_tokens))
        firsts.append(_generate(seat.engine, steps, work.device, 2 * lap + 1, 1))
    seat.engine.close()
    # The best of each, then their difference: a slow prefill taken off a fast lap would leave too few seconds.
    seconds = max(min(wholes[1:]) - min(firsts[1:]), 1e-9)
    roofline = steps.read_bytes(reads, work.dtype) / rate
    return Decoded(steps, work.dtype, work.kernels, seconds, roofline, peak_mib(work.device))


def _generate(engine: Engine, steps: Steps, device: str, lap: int, tokens: int) -> float:
    prompts = [
        Prompt(
            tuple(4 + (7 * lap + 13 * prompt + place * place) % 90 for place in range(steps.prompt_tokens)),
            tuple(1000 * prompt + sibling for sibling in range(steps.siblings)),
            tokens,
        )
        for prompt in range(steps.prompts)
    ]
    return timed(device, lambda: engine.generate(prompts, 1.0))


def timed(device: str, work: Callable[[], object]) -> float:
    """Seconds, with all that the device has yet to do."""
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started
