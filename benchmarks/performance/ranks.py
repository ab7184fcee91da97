"""What two ranks compute and send each other before the updates: `python -m benchmarks.performance.ranks`.

Takes the flags of `tsr fit`. Collects the first rollout by the shares of two ranks, one after the other, estimates it
in two ways of sharing it out, and sends rollout and estimates between two processes under gloo. Seconds are of the
processor, so that other programs count less; medians.
"""

import multiprocessing
import pickle
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.performance.report import machine
from tsr_lightning.batching.distinct import distinct_pieces
from tsr_lightning.batching.packing import share_out
from tsr_lightning.batching.schedule import micro_batches
from tsr_lightning.batching.sequences import ToEstimate, training_sequences
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.cli.app import TSRCLI, CheckingCLI, run
from tsr_lightning.rollout.groups import epoch_tasks, run_groups, shares_by_kind
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.lightning_compat import attach
from tsr_lightning.trajectory import Group

RANKS, REPEATS = 2, 5
QUIET = ("--trainer.accelerator", "cpu", "--trainer.logger", "false", "--trainer.callbacks", "null")
Gather = Callable[[ProcessGroup], object]


def processor_seconds(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def rolled_out(cli: TSRCLI) -> list[list[Group]]:
    """The groups of each rank's share, and a line about each."""
    agent, data = cli.model, cli.datamodule
    driver = data.actor.driver()
    instances = data.instances.training(0, data.instances_per_epoch).instances
    tasks = epoch_tasks(instances, data.plan.entries(0), data.key, 0)
    run_groups(driver, tasks[:1])
    by_rank = []
    for rank, share in enumerate(shares_by_kind([members[0].env for members in tasks], RANKS)):
        data.actor.release()
        agent.weights.gather()
        data.actor.sync()
        before, started = driver.costs, time.process_time()
        by_rank.append(run_groups(driver, [tasks[i] for i in share]))
        costs = driver.costs - before
        print(
            f"rollout, rank {rank}: {time.process_time() - started:.2f} s, {costs.tokens_computed:,} tokens computed, "
            f"{costs.tokens_generated:,} generated"
        )
    return by_rank


def estimated(cli: TSRCLI, asked: Sequence[ToEstimate], shares: Sequence[Sequence[int]], name: str) -> None:
    """Prints what estimating each share costs."""
    limit = cli.datamodule.updates.tokens_at_once
    for rank, share in enumerate(shares):
        own = [asked[i] for i in share]
        sequences = [sequence for one in own for sequence in one.sequences]
        tokens = sum(len(batch.packed) for _, batch in micro_batches(sequences, limit))
        seconds = [processor_seconds(partial(cli.model.estimates, own, limit)) for _ in range(REPEATS)]
        print(f"estimates, {name}, rank {rank}: {median(seconds):.3f} s, {tokens:,} tokens, {len(own)} trajectories")


def _receive(rank: int, port: int, gathers: Sequence[tuple[str, Gather]], results: Any) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    for name, gather in gathers:
        seconds = [processor_seconds(partial(gather, ProcessGroup(rank, RANKS))) for _ in range(REPEATS)]
        results.put(f"gathering {name}, rank {rank}: {1000 * median(seconds):.1f} ms")
    dist.destroy_process_group()


def print_gathering(gathers: Sequence[tuple[str, Gather]]) -> None:
    """Sends between two processes under gloo, and prints the processor's seconds of each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_receive, args=(rank, port, gathers, results)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for line in sorted(results.get(timeout=300) for _ in range(RANKS * len(gathers))):
        print(line)
    for process in processes:
        process.join()


def main(flags: Sequence[str]) -> None:
    torch.set_num_threads(1)
    cli = run(["fit", *flags, *QUIET, "--trainer.enable_checkpointing", "false"], CheckingCLI)
    attach(cli.trainer, cli.model, cli.datamodule)
    cli.model.configure_model()
    print(f"{machine()}, 1 thread, {RANKS} ranks: {' '.join(flags)}")
    by_rank = rolled_out(cli)
    pieces, _ = distinct_pieces([[group] for group in chain.from_iterable(by_rank)])
    asked = [ToEstimate(piece, training_sequences(piece)) for piece in pieces]
    every_nth = [range(rank, len(asked), RANKS) for rank in range(RANKS)]
    by_tokens = share_out([[sequence.inputs for sequence in one.sequences] for one in asked], RANKS)
    cli.model.estimates(asked[:RANKS], cli.datamodule.updates.tokens_at_once)
    estimated(cli, asked, [range(len(asked))], "one process")
    estimated(cli, asked, every_nth, "every n-th")
    estimated(cli, asked, by_tokens, "by tokens")

    limit = cli.datamodule.updates.tokens_at_once
    pickled = [cli.model.estimates([asked[i] for i in share], limit) for share in by_tokens]
    lengths = [sum(len(one.flat()) for one in own) for own in pickled]

    def as_tensors(ranks: ProcessGroup) -> list[Estimates]:
        parts = ranks.gather_tensors(torch.cat([one.flat() for one in pickled[ranks.rank]]), lengths)
        sizes = [[len(one.flat()) for one in own] for own in pickled]
        return [
            Estimates.from_flat(one, len(one) // 3)
            for part, of in zip(parts, sizes, strict=True)
            for one in part.split(of)
        ]

    print(f"bytes of rank 0: groups {len(pickle.dumps(by_rank[0])):,}, estimates {len(pickle.dumps(pickled[0])):,}")
    print(f"                 estimates as a tensor {4 * lengths[0]:,}")
    print_gathering(
        [
            ("groups, pickled", lambda ranks: ranks.gather(by_rank[ranks.rank])),
            ("estimates, pickled", lambda ranks: ranks.gather(pickled[ranks.rank])),
            ("estimates, as tensors", as_tensors),
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
