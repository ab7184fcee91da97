"""Where the environments of a wave step: in the calling thread, or in worker threads during generation."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Node

EnvStep = Callable[[TurnSimulator], Node]
PendingNodes = Callable[[], list[Node]]  # blocks until the steps are done; their nodes, in the order of the steps


class StepExecutor(Protocol):
    """Runs the environment steps of a wave."""

    @property
    def cohorts(self) -> int:
        """How many cohorts the searches are split into, so that one can step while another generates."""
        ...

    def start(self, steps: Sequence[EnvStep]) -> PendingNodes: ...


class SerialExecutor:
    """One environment, in the calling thread."""

    cohorts = 1

    def __init__(self, simulator: TurnSimulator) -> None:
        self._simulator = simulator

    def start(self, steps: Sequence[EnvStep]) -> PendingNodes:
        nodes = [step(self._simulator) for step in steps]
        return lambda: nodes


class ThreadedExecutor:
    """Several environments, each used by one thread at a time, while the other half of the searches generates."""

    cohorts = 2

    def __init__(self, simulators: Sequence[TurnSimulator], threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._idle: SimpleQueue[TurnSimulator] = SimpleQueue()
        for simulator in simulators:
            self._idle.put(simulator)

    def start(self, steps: Sequence[EnvStep]) -> PendingNodes:
        futures = [self._threads.submit(self._run, step) for step in steps]
        return lambda: [future.result() for future in futures]

    def _run(self, step: EnvStep) -> Node:
        simulator = self._idle.get()
        try:
            return step(simulator)
        finally:
            self._idle.put(simulator)


@contextmanager
def threaded(simulators: Sequence[TurnSimulator]) -> Iterator[StepExecutor]:
    """A ThreadedExecutor whose threads end with the context; after an error, steps not yet begun are cancelled."""
    threads = ThreadPoolExecutor(len(simulators), thread_name_prefix="environment")
    try:
        yield ThreadedExecutor(simulators, threads)
    finally:
        threads.shutdown(cancel_futures=True)
