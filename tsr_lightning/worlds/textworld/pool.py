"""Processes that make games beside the program, each served by a thread. What is waited for goes first."""

import atexit
import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

from tsr_lightning.errors import EnvFault
from tsr_lightning.worlds.textworld.orders import Order, Outcome

MOST_PROCESSES = 4
MOST_SECONDS = 300.0  # that a game may take; most take one, and huge worlds take forever
_URGENT, _AHEAD = 0, 1


class GameError(RuntimeError):
    """TextWorld could not make a game; says why."""


@dataclass(eq=False)
class _Job:
    order: Order
    future: "Future[None]" = field(default_factory=Future)
    taken: bool = False  # by a thread


class MakerPool:
    """Makes games in the background.

    Args:
        processes: how many work side by side. Each starts when there is work for it.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._queue: queue.PriorityQueue[tuple[int, int, _Job]] = queue.PriorityQueue()
        self._number = itertools.count()  # first come, first served among equally urgent ones
        self._jobs: dict[str, _Job] = {}  # by path, unfinished ones
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._made = self._ordered = 0  # since there was last nothing to do

    @property
    def progress(self) -> tuple[int, int]:
        """Games made of those ordered, since there was last nothing to do."""
        return self._made, self._ordered

    def order(self, orders: Sequence[Order], *, urgent: bool = False) -> list["Future[None]"]:
        """Futures of games, one for each order; where a game cannot be made, it raises a GameError, and
        where the process that makes it died an EnvFault."""
        with self._lock:
            if not self._jobs:
                self._made = self._ordered = 0
            before = len(self._jobs)
            jobs = [self._jobs.setdefault(order["path"], _Job(order)) for order in orders]
            self._ordered += len(self._jobs) - before
            for job in jobs:
                self._queue.put((_URGENT if urgent else _AHEAD, next(self._number), job))
            for _ in range(min(self._processes, len(self._jobs)) - len(self._threads)):
                thread = threading.Thread(target=self._work, name="makes-games", daemon=True)
                self._threads.append(thread)
                thread.start()
        return [job.future for job in jobs]

    def _work(self) -> None:
        maker = _Maker()
        atexit.register(maker.close)
        while True:
            _, _, job = self._queue.get()
            with self._lock:
                if job.taken:  # it was ordered again, more urgently
                    continue
                job.taken = True
            error: Exception | None = None
            try:
                if not Path(job.order["path"]).exists():  # another program may have made it
                    maker.make(job.order)
            except Exception as raised:
                error = raised
            with self._lock:
                del self._jobs[job.order["path"]]
                self._made += 1
            if error is None:
                job.future.set_result(None)
            else:
                job.future.set_exception(error)


class _Maker:
    """A process that makes one game after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115, of the process, which may end with one

    def make(self, order: Order) -> None:
        process = self._process = self._process or self._start()
        late = threading.Timer(MOST_SECONDS, process.kill)
        late.start()
        try:
            answer = _ask(process, order)
        finally:
            late.cancel()
        if not answer:
            code = self._end(process)
            if code == -signal.SIGKILL:
                raise GameError(f"it took longer than {MOST_SECONDS:.0f} s")
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2]
            raise EnvFault(f"the process that makes games ended with code {code}: {last}")
        outcome: Outcome = json.loads(answer)
        if outcome["problem"]:
            raise GameError(outcome["problem"])

    def close(self) -> None:
        """Lets the process finish its game and end."""
        if self._process is not None:
            self._end(self._process)

    def _end(self, process: "subprocess.Popen[str]") -> int:
        """Ends the process and returns its exit code."""
        with contextlib.suppress(BrokenPipeError):  # raised where the last order was not read
            process.__exit__(None, None, None)  # closes its pipes and waits
        self._process = None
        return process.wait()

    def _start(self) -> "subprocess.Popen[str]":
        self._errors.seek(0)
        self._errors.truncate()
        return subprocess.Popen(
            [sys.executable, "-m", "tsr_lightning.worlds.textworld.maker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"},
            text=True,
        )


def _ask(process: "subprocess.Popen[str]", order: Order) -> str:
    """The process's answer; "" if it ended instead."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has no pipes")
    with contextlib.suppress(BrokenPipeError):  # it has ended, and so has its output
        print(json.dumps(order), file=process.stdin, flush=True)
    return process.stdout.readline()


@cache
def maker_pool() -> MakerPool:
    """The pool of this program."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1  # macOS has no affinity
    return MakerPool(min(MOST_PROCESSES, cores))
