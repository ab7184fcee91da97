"""Where the environments of a wave step: in the calling thread, or in worker threads during generation."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from tsr_lightning.search.retry import RetriesExhausted
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Node

EnvStep = Callable[[TurnSimulator], Node]
# Blocks until the steps are done; their nodes, in the order of the steps, and None where the environment failed
PendingNodes = Callable[[], list[Node | None]]
StepExecutor = Callable[[Sequence[EnvStep]], PendingNodes]  # starts the steps of a wave


@contextmanager
def serial(simulator: TurnSimulator) -> Iterator[StepExecutor]:
    """Steps one environment in the calling thread."""

    def start(steps: Sequence[EnvStep]) -> PendingNodes:
        nodes = [_node(step, simulator) for step in steps]
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

    def run(step: EnvStep) -> Node | None:
        simulator = idle.get()
        try:
            return _node(step, simulator)
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


def _node(step: EnvStep, simulator: TurnSimulator) -> Node | None:
    try:
        return step(simulator)
    except RetriesExhausted:
        return None
