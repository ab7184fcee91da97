"""Rollouts and whole iterations by everyone who is there, one after the other: each may need the whole card."""

import gc
import importlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.performance.alternate import Participant, Record, alternate
from benchmarks.performance.line import Line
from benchmarks.performance.participant import MODULES
from benchmarks.performance.workload import Workload, peak_mib


@dataclass(frozen=True)
class Entry:
    """Who plays what.

    Args:
        name: a key of `participant.MODULES`.
        work: what it plays.
        python: the interpreter of its environment; null plays in this process.
    """

    name: str
    work: Workload
    python: str | None = None

    @property
    def title(self) -> str:
        kernels = f" ({self.work.kernels})" if self.name.startswith("ours") else ""
        return f"{self.name}{kernels}: {self.work.name}, {self.work.trajectories} trajectories"


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    entry: Entry
    record: Record | None = None
    peak_mib: float | None = None  # what PyTorch allocated in the process; null where that is not known
    failure: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether there was an update too."""
        return self.record is not None and "seconds_rollout" in self.record.laps[0]

    @property
    def tokens_per_second(self) -> float | None:
        """Generated, over the rollout's seconds."""
        if self.record is None:
            return None
        seconds = self.record.median_of("seconds_rollout" if self.is_whole else "seconds")
        return self.record.median_of("costs", "tokens_generated") / seconds

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.entry.name,
            "workload": self.entry.work.as_json(),
            "tokens_per_second": self.tokens_per_second,
            "peak_mib": self.peak_mib,
            "failure": self.failure,
            "record": self.record and self.record.as_json(),
        }


def play(entry: Entry, folder: Path, laps: int, threads: int, log: Path) -> Outcome:
    """Of one participant. A failure is an outcome too, so that the others are measured."""
    try:
        if entry.python is not None:
            one = Participant(entry.name, entry.work, entry.python)
            [record] = alternate([one], folder, laps=laps, threads=threads, log=log)
            return Outcome(entry, record, record.laps[-1].get("peak_mib"))
        return _here(entry, folder, laps)
    except (RuntimeError, ValueError, ImportError, OSError) as error:  # out of memory is a RuntimeError
        return Outcome(entry, failure=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    finally:
        gc.collect()
        if entry.work.device == "cuda":
            torch.cuda.empty_cache()


def _here(entry: Entry, folder: Path, laps: int) -> Outcome:
    """In this process, by the same lines as elsewhere."""
    if entry.work.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    asks, answers = io.StringIO("".join(f"{lap}\n" for lap in range(laps))), io.StringIO()
    importlib.import_module(MODULES[entry.name]).take_part(Line(asks, answers), entry.work, folder)
    ready, *figures = map(json.loads, answers.getvalue().splitlines())
    record = Record(entry.name, entry.work, ready["settings"], tuple(figures))
    return Outcome(entry, record, peak_mib(entry.work.device))


def ratio(other: Outcome, mine: Outcome) -> float | None:
    """The other's seconds over ours, a generated token: a model of one's own may end a response before its limit."""
    if other.record is None or mine.record is None:
        return None
    return _token_seconds(other.record) / _token_seconds(mine.record)


def _token_seconds(record: Record) -> float:
    return record.seconds / record.median_of("costs", "tokens_generated")


def of_same_work(outcomes: Sequence[Outcome], other: Outcome) -> Outcome | None:
    """Ours, with the kernels of choice, on what the other played."""
    name = "ours, whole iteration" if other.is_whole else "ours"
    wanted = Entry(name, replace(other.entry.work, kernels="flex"))
    return next((mine for mine in outcomes if mine.entry == wanted), None)
