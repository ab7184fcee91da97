"""Runs that are interrupted at random moments and go on, each compared with one that was not interrupted."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.interruptions.end import (
    equal,
    evaluations_of,
    faults_of_an_end,
    files_of,
    repeated_evaluations,
    state_of,
)
from benchmarks.interruptions.run import Process, prepare

STARTING = 0.15  # of the interruptions come before the run begins
WRITING = 0.15  # and as many wait until a checkpoint is being written, which takes milliseconds here
SECONDS = 600  # that a process may take


@dataclass(frozen=True)
class Case:
    """A run that is interrupted."""

    logger: str
    by: str
    number: int
    times: int

    def __str__(self) -> str:
        return f"{self.logger}-{self.by}-{self.number}"


@dataclass
class Result:
    """The moments at which a case was interrupted, and the faults that were found."""

    case: Case
    moments: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """A run that was not interrupted."""

    state: Mapping[str, Any]  # weights and optimizer
    evaluations: Sequence[Any]
    files: frozenset[str]
    starting: float  # seconds until it began
    running: float  # and from then on


def run_reference(root: Path, logger: str) -> Reference:
    """Runs to the end without an interruption.

    Raises:
        RuntimeError: it failed.
    """
    folder = root / f"{logger}-uninterrupted"
    prepare(folder, logger)
    process = Process(folder, 0)
    starting = process.wait_for_its_beginning()
    if process.process.wait(SECONDS) != 0:
        raise RuntimeError(process.output())
    running = time.monotonic() - process.started - starting
    return Reference(state_of(folder), evaluations_of(folder), files_of(folder), starting, running)


def run_case(case: Case, root: Path, reference: Reference, seed: int) -> Result:
    """Interrupts a run, goes on with it to its end, and compares."""
    folder, result = root / str(case), Result(case)
    prepare(folder, case.logger)
    draws = random.Random(f"{seed} {case}")
    for number in range(case.times):
        process = Process(folder, number)
        when, later = draws.random(), draws.uniform(0, 0.9 * reference.running / case.times)
        if when < STARTING:
            time.sleep(draws.uniform(0.2, reference.starting))
        else:
            process.wait_for_its_beginning()
            if when < STARTING + WRITING:
                process.wait_for_a_checkpoint(later)
            else:
                time.sleep(later)
        moment = process.interrupt(case.by)
        status = process.process.wait(SECONDS)
        result.moments.append(moment or "after its end")
        result.faults += faults_of_an_end(case.by, status, process.output(), moment)
        result.faults += repeated_evaluations(process.output())
    process = Process(folder, case.times)
    if (status := process.process.wait(SECONDS)) != 0:
        result.faults.append(f"it went on with status {status}: {process.output()[-2000:]}")
        return result
    result.faults += repeated_evaluations(process.output())
    if not equal(state_of(folder), reference.state):
        result.faults.append("its weights or its optimizer's state differ")
    if evaluations_of(folder) != reference.evaluations:
        result.faults.append("its evaluations differ")
    differing = sorted(files_of(folder) ^ reference.files)
    if differing:
        result.faults.append(f"files that it has alone or lacks: {', '.join(differing)}")
    if not result.faults:
        shutil.rmtree(folder)
    return result


def table(results: Sequence[Result]) -> str:
    """Rows by logger and signal."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.case.logger, result.case.by), []).append(result)
    lines = ["| logger | by | runs | equal in all | interruptions, by what they met |", "|---|---|---|---|---|"]
    for (logger, by), own in groups.items():
        moments = Counter(moment for result in own for moment in result.moments)
        met = ", ".join(f"{count} {moment}" for moment, count in moments.most_common())
        good = sum(not result.faults for result in own)
        lines.append(f"| {logger} | {by} | {len(own)} | {good} | {met} |")
    return "\n".join(lines)


def cases(counts: Mapping[str, int], loggers: Sequence[str]) -> list[Case]:
    """Runs by signal, spread over the loggers; every second one is interrupted twice."""
    return [
        Case(loggers[number % len(loggers)], by, number, 1 + number % 2)
        for by, count in counts.items()
        for number in range(count)
    ]
