"""Collects rollouts ahead of the updates, in a background thread. Knows nothing of a rollout's contents.

    epoch e:        begin rollout e + s with the weights of now -> wait for rollout e -> updates
    beside it:      rollouts e + 1 to e + s, one after the other

Which weights a rollout is collected with depends on its place in the run alone and never on how long anything takes:
rollout e has those after max(0, e - s) epochs, s being `data.staleness`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from torch import Tensor

from tsr_lightning.rollout.collect import Collected
from tsr_lightning.search.progress import Progress, Report

_STOP_SECONDS = 60.0  # that a stopping run waits for the wave in progress; an environment may hang


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A policy's trained weights at one moment."""

    epochs: int  # that it had been trained for
    weights: Mapping[str, Tensor]


# Collects the rollout of an epoch with a snapshot's weights, and reports its waves
CollectFn = Callable[[int, Snapshot, Report], Collected]


class _Cancelled(Exception):
    """Nobody wants the rollout any more."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A rollout to collect, and what its collection says meanwhile: its progress, and last of all its result."""

    epoch: int
    snapshot: Snapshot
    cancelled: Event = field(default_factory=Event)
    messages: "SimpleQueue[Progress | Future[Collected]]" = field(default_factory=SimpleQueue)

    def report(self, progress: Progress) -> None:
        if self.cancelled.is_set():
            raise _Cancelled
        self.messages.put(progress)


class Ahead:
    """Collects rollouts one after the other, in the order in which they were begun.

    Args:
        collect: called in a thread of its own, for one rollout at a time.
    """

    def __init__(self, collect: CollectFn) -> None:
        self._collect = collect
        self._snapshots: dict[int, Snapshot] = {}  # of the rollouts of this epoch and of later ones, by epoch
        self._jobs: dict[int, _Job] = {}  # those that were begun and not taken
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def begin(self, epoch: int, ahead: Iterable[int], now: Callable[[], Snapshot], end: int | None = None) -> None:
        """Begins rollouts that have not begun: with the weights of now, or in a resumed run with those that they had.

        Args:
            epoch: that begins.
            ahead: the epochs whose rollouts may begin.
            now: takes a snapshot.
            end: of the run: the rollout of this epoch and of later ones only gets its weights, for a resumed run that
                ends later.
        """
        self._snapshots = {other: snapshot for other, snapshot in self._snapshots.items() if other >= epoch}
        current: Snapshot | None = None
        for other in ahead:
            if other not in self._snapshots:
                current = current or now()
                self._snapshots[other] = current
            if other not in self._jobs and (end is None or other < end):
                self._jobs[other] = job = _Job(other, self._snapshots[other])
                self._queue.put(job)
        if self._thread is None and self._jobs:
            self._thread = Thread(target=self._run, name="rollouts", daemon=True)
            self._thread.start()

    def take(self, epoch: int, report: Report) -> Collected:
        """Waits for the rollout of an epoch. Reports its waves, those of the past too, in the caller's thread, and
        raises the error that collecting it raised."""
        job, began = self._jobs[epoch], time.perf_counter()
        while not isinstance(message := job.messages.get(), Future):
            waited = time.perf_counter() - began
            report(replace(message, overlapped_seconds=max(0.0, message.seconds - waited)))
        del self._jobs[epoch]  # not earlier: a run that is interrupted here stops it
        return replace(message.result(), waited=time.perf_counter() - began)

    def discard_pending(self) -> None:
        """Drops all rollouts that were begun: the next ones are collected with the weights of then."""
        for job in self._jobs.values():
            job.cancelled.set()
        self._jobs, self._snapshots = {}, {}

    def stop(self) -> None:
        """Ends the thread, after the wave in progress at the latest. Begins no rollout again."""
        for job in self._jobs.values():
            job.cancelled.set()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_STOP_SECONDS)
            self._thread = None

    def state_dict(self, epoch: int) -> dict[str, Any]:
        """The weights of the rollouts that were begun, for a run that goes on with this epoch; by the epochs that their
        policy had been trained for."""
        kept = {other: snapshot for other, snapshot in self._snapshots.items() if other >= epoch}
        return {
            "policies": {snapshot.epochs: dict(snapshot.weights) for snapshot in kept.values()},
            "policy_of": {other: snapshot.epochs for other, snapshot in kept.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], staleness: int) -> None:
        """Rollouts that would be staler than this are left out, and get the weights of the resumed run."""
        snapshots = {epochs: Snapshot(epochs, weights) for epochs, weights in state_dict["policies"].items()}
        policy_of = {epoch: epochs for epoch, epochs in state_dict["policy_of"].items() if epoch - epochs <= staleness}
        self._snapshots = {epoch: snapshots[epochs] for epoch, epochs in policy_of.items()}

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if job.cancelled.is_set():
                continue
            ended: Future[Collected] = Future()
            try:
                ended.set_result(self._collect(job.epoch, job.snapshot, job.report))
            except _Cancelled:
                continue
            except BaseException as error:  # whatever it is, it ends the run: `take` raises it
                ended.set_exception(error)
            job.messages.put(ended)
