"""Where the environments of a wave step: in the calling thread, or in worker threads during generation."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Node

EnvStep = Callable[[TurnSimulator], Node]
PendingNodes = Callable[[], list[Node]]  # blocks until the steps are done; their nodes, in the order of the steps
StepExecutor = Callable[[Sequence[EnvStep]], PendingNodes]  # starts the steps of a wave


@contextmanager
def serial(simulator: TurnSimulator) -> Iterator[StepExecutor]:
    """Steps one environment in the calling thread."""

    def start(steps: Sequence[EnvStep]) -> PendingNodes:
        nodes = [step(simulator) for step in steps]
        return lambda: nodes

    yield start


@contextmanager
def threaded(simulators: Sequence[TurnSimulator]) -> Iterator[StepExecutor]:
    """Steps several environments, each used by one thread at a time.

    The threads end with the context; after an error, steps not yet begun are cancelled.
    """
    idle: SimpleQueue[TurnSimulator] = SimpleQueue()
    for simulator in simulators:
        idle.put(simulator)

    def run(step: EnvStep) -> Node:
        simulator = idle.get()
        try:
            return step(simulator)
        finally:
            idle.put(simulator)

    def start(steps: Sequence[EnvStep]) -> PendingNodes:
        futures = [threads.submit(run, step) for step in steps]
        return lambda: [future.result() for future in futures]

    threads = ThreadPoolExecutor(len(simulators), thread_name_prefix="environment")
    try:
        yield start
    finally:
        threads.shutdown(cancel_futures=True)
