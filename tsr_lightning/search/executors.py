"""Where the environments of a wave step: in the calling thread, or in worker threads during generation."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread

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
    """Steps several environments, each in a thread of its own.

    The threads end with the context; after an error, steps not yet begun are left out. Where the program is to end, it
    does so without those that a step of an environment holds up: `ThreadPoolExecutor` would wait for them.
    """
    waiting: SimpleQueue[tuple[Future[Node | None], EnvStep] | None] = SimpleQueue()
    has_ended = Event()

    def serve(simulator: TurnSimulator) -> None:
        while (asked := waiting.get()) is not None and not has_ended.is_set():
            future, step = asked
            try:
                future.set_result(_node(step, simulator))
            except BaseException as error:  # of any class: it is raised again where the result is asked for
                future.set_exception(error)

    def start(steps: Sequence[EnvStep]) -> PendingNodes:
        futures: list[Future[Node | None]] = [Future() for _ in steps]
        for asked in zip(futures, steps, strict=True):
            waiting.put(asked)
        return lambda: [future.result() for future in futures]

    threads = [
        Thread(target=serve, args=(simulator,), name=f"environment {number}", daemon=True)
        for number, simulator in enumerate(simulators)
    ]
    for thread in threads:
        thread.start()
    waits = True
    try:
        yield start
    except (KeyboardInterrupt, SystemExit):
        waits = False
        raise
    finally:
        has_ended.set()
        for _ in threads:
            waiting.put(None)
        for thread in threads if waits else ():
            thread.join()


def _node(step: EnvStep, simulator: TurnSimulator) -> Node | None:
    try:
        return step(simulator)
    except RetriesExhausted:
        return None
