"""Participants side by side, each in a process that stays up, asked in turn, one busy at a time."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from benchmarks.performance.workload import Workload

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Participant:
    """Who takes part, and with what.

    Args:
        name: a key of `participant.MODULES`.
        work: what it plays.
        python: the interpreter of its environment.
    """

    name: str
    work: Workload
    python: str = sys.executable


@dataclass(frozen=True)
class Record:
    """What a participant showed."""

    name: str
    work: Workload
    settings: str
    laps: tuple[dict[str, Any], ...]  # its answers

    @property
    def seconds(self) -> float:
        return median(self.all_seconds)

    @property
    def all_seconds(self) -> list[float]:
        return [lap["seconds"] for lap in self.laps]

    @property
    def seconds_per_trajectory(self) -> float:
        return self.seconds / self.work.trajectories

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "workload": self.work.as_json(),
            "settings": self.settings,
            "seconds": self.all_seconds,
            "laps": list(self.laps),
        }

    def median_of(self, *keys: str) -> float:
        return median(_at(lap, keys) for lap in self.laps)


def alternate(participants: Sequence[Participant], folder: Path, *, laps: int, threads: int, log: Path) -> list[Record]:
    """Each participant's laps, taken in turn; the order is reversed every other lap."""
    with ExitStack() as stack:
        talks = [stack.enter_context(_started(one, folder, threads, log)) for one in participants]
        answers: list[list[dict[str, Any]]] = [[] for _ in participants]
        for lap in range(laps):
            order = range(len(talks)) if lap % 2 == 0 else reversed(range(len(talks)))
            for i in order:
                answers[i].append(talks[i].ask(lap))
        return [
            Record(one.name, one.work, talk.settings, tuple(mine))
            for one, talk, mine in zip(participants, talks, answers, strict=True)
        ]


class _Talk:
    """The parent's end of a line."""

    def __init__(self, process: "subprocess.Popen[str]", name: str, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asks: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self._name = name
        self._log = log
        self.settings: str = self._answer()["settings"]

    def ask(self, lap: int) -> dict[str, Any]:
        self._asks.write(f"{lap}\n")
        self._asks.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the participant {self._name!r} ended without an answer: {self._log} says why")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def _started(one: Participant, folder: Path, threads: int, log: Path) -> Iterator[_Talk]:
    """A participant that is ready. At the end its input is closed, at which it leaves."""
    log.mkdir(parents=True, exist_ok=True)
    file = log / f"{one.name}, {one.work.name}.log".replace(", ", "-").replace(" ", "-")
    module = "benchmarks.performance.participant"
    command = [one.python, "-m", module, one.name, str(folder), json.dumps(one.work.as_json()), str(threads)]
    with file.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield _Talk(process, one.name, file)
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=60)
            finally:
                with suppress(ProcessLookupError):  # vLLM's own processes would outlive it
                    os.killpg(process.pid, signal.SIGKILL)


def _environment(threads: int) -> dict[str, str]:
    """Equal threads for all and no hub; for vLLM a cache that holds every workload, and the cores of this process."""
    is_linux = sys.platform == "linux"
    cores = sorted(os.sched_getaffinity(0)) if is_linux else list(range(os.cpu_count() or 1))
    return {
        "VLLM_CPU_KVCACHE_SPACE": "6",  # GiB
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[:threads])),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


def _at(lap: dict[str, Any], keys: Sequence[str]) -> float:
    found: Any = lap
    for key in keys:
        found = found[key]
    return float(found)
