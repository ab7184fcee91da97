"""Prints what a study does: a line per run begun and ended, with what is left and for how long."""

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from tsr_lightning.durations import duration
from tsr_lightning.studies.grid import Run


def seconds_left(
    durations: Mapping[str, Sequence[float]], waiting: Collection[Run], running: Mapping[Run, float], jobs: int
) -> float | None:
    """Estimates how long a study still takes, by what finished runs took; None before the first.

    Args:
        durations: seconds of the finished runs by arm; an arm without one takes the mean of all.
        waiting: runs that have not begun.
        running: seconds since the other runs began.
        jobs: runs side by side.
    """
    known = [seconds for several in durations.values() for seconds in several]
    if not known:
        return None
    overall = fmean(known)
    expected = {arm: fmean(several) for arm, several in durations.items() if several}
    left = [max(0.0, expected.get(run.arm, overall) - passed) for run, passed in running.items()]
    left += [expected.get(run.arm, overall) for run in waiting]
    return max(sum(left) / jobs, max(left, default=0.0))


def describe_change(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Describes success at the start, where the run measured it, and at the last evaluation: `sampled 0.125 to
    0.560`."""
    first, last = evaluations[0]["figures"], evaluations[-1]["figures"]
    has_start = len(evaluations) > 1 and evaluations[0]["costs"]["epochs"] == 0
    parts = []
    for protocol, figures in last.items():
        after = f"{figures['success_rate']:.3f}"
        begun_at = f"{first[protocol]['success_rate']:.3f} to " if has_start and protocol in first else ""
        parts.append(f"{protocol} {begun_at}{after}")
    return ", ".join(parts)


class Progress:
    """Prints the lines of a study; safe to call from several threads.

    Args:
        runs: those to do.
        durations: seconds of runs that were finished before, by arm.
        jobs: runs side by side.
        console: where to print.
    """

    def __init__(
        self, runs: Sequence[Run], durations: Mapping[str, Sequence[float]], jobs: int, console: Console
    ) -> None:
        self._total = len(runs)
        self._waiting = list(runs)
        self._begun: dict[Run, float] = {}
        self._ended = 0
        self._durations = defaultdict(list, {arm: list(several) for arm, several in durations.items()})
        self._jobs = jobs
        self._console = console
        self._mutex = threading.Lock()

    def say(self, sentence: str, style: str = "") -> None:
        """Prints a line; a Text, because rich would take brackets for markup."""
        self._console.print(Text(sentence, style=style), soft_wrap=True)

    def begin(self, run: Run, note: str) -> None:
        with self._mutex:
            self._waiting.remove(run)
            self._begun[run] = time.monotonic()
            self.say(f"{run} {note}")

    def finish(self, run: Run, seconds: float, note: str) -> None:
        """Ends a run that finished; `seconds` are those of the whole run, those before it was stopped included."""
        with self._mutex:
            self._durations[run.arm].append(max(seconds, time.monotonic() - self._begun[run]))
            self._end(run, f"finished after {duration(seconds)}: {note}", "green")

    def skip(self, run: Run, note: str) -> None:
        """Ends a run that another process made."""
        with self._mutex:
            self._end(run, note, "green")

    def fail(self, run: Run, note: str, lines: Sequence[str]) -> None:
        with self._mutex:
            self._end(run, note, "bold red")
            for line in lines:
                self.say(f"    {line}")

    def _end(self, run: Run, sentence: str, style: str) -> None:
        del self._begun[run]
        self._ended += 1
        now = time.monotonic()
        running = {other: now - since for other, since in self._begun.items()}
        seconds = seconds_left(self._durations, self._waiting, running, self._jobs)
        count = self._total - self._ended
        about = f", about {duration(seconds)}" if seconds is not None and count else ""
        self.say(f"[{self._ended}/{self._total}] {run} {sentence}; {count or 'none'} left{about}", style)
