"""For trainers that take a trajectory as one row of tokens: the rows, and how many of them a pass should have."""

import time
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.performance.workload import MINIBATCHES, Workload
from tsr_lightning.trajectory import Trajectory

MICRO_BATCHES = (2, 4, 8, 16)  # rows of one forward and backward pass, of which the fastest is taken


class Row(NamedTuple):
    """A trajectory under the full context."""

    prompt: list[int]  # of the first turn
    completion: list[int]  # all that came after it
    mask: list[int]  # 1 where that was sampled


def row_of(trajectory: Trajectory) -> Row:
    first, *_ = trajectory.turns
    ids: list[int] = list(first.prompt)
    mask: list[int] = []
    for turn in trajectory.turns:
        fresh = turn.prompt[len(ids) :]
        ids += [*fresh, *turn.response]
        mask += [0] * len(fresh) + [1] * len(turn.response)
    return Row(list(first.prompt), ids[len(first.prompt) :], mask)


def fastest_micro_batch(model: nn.Module, work: Workload) -> int:
    """The divisor of a minibatch whose forward and backward pass is the fastest per row, on rows of full length."""
    minibatch = work.trajectories // MINIBATCHES
    model.train()
    tried: dict[int, float] = {}
    for rows in MICRO_BATCHES:
        if rows > minibatch or minibatch % rows:
            continue
        ids = torch.zeros(rows, work.longest, dtype=torch.int64, device=work.device)
        started = time.perf_counter()
        try:
            for _ in range(2):
                model(input_ids=ids, labels=ids).loss.backward()
            if work.device == "cuda":
                torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            break
        tried[rows] = (time.perf_counter() - started) / rows
        model.zero_grad()
    return min(tried, key=lambda rows: tried[rows], default=1)
