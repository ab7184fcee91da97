"""Where the environments of a wave step: in turn with generation, or beside it in threads of their own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Node

Job = Callable[[TurnSimulator], Node]  # one step of an environment
Pending = Callable[[], list[Node]]  # waits for what came of jobs, in their order


class StepExecutor(Protocol):
    """Does the jobs of a wave."""

    @property
    def crews(self) -> int:
        """Into how many parts searches are to be split, so that one can step while another one generates."""
        ...

    def start(self, jobs: Sequence[Job]) -> Pending: ...


class Serial:
    """One environment, while nothing else happens."""

    crews = 1

    def __init__(self, moves: TurnSimulator) -> None:
        self._moves = moves

    def start(self, jobs: Sequence[Job]) -> Pending:
        nodes = [job(self._moves) for job in jobs]
        return lambda: nodes


class Threaded:
    """Several environments, each in a thread, while the other half of the searches generates."""

    crews = 2

    def __init__(self, moves: Sequence[TurnSimulator], threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._idle: SimpleQueue[TurnSimulator] = SimpleQueue()
        for one in moves:
            self._idle.put(one)

    def start(self, jobs: Sequence[Job]) -> Pending:
        steps = [self._threads.submit(self._do, job) for job in jobs]
        return lambda: [step.result() for step in steps]

    def _do(self, job: Job) -> Node:
        moves = self._idle.get()
        try:
            return job(moves)
        finally:
            self._idle.put(moves)


@contextmanager
def beside(moves: Sequence[TurnSimulator]) -> Iterator[StepExecutor]:
    """Threads as long as they are needed; an error ends what has not begun."""
    threads = ThreadPoolExecutor(len(moves), thread_name_prefix="environment")
    try:
        yield Threaded(moves, threads)
    finally:
        threads.shutdown(cancel_futures=True)
