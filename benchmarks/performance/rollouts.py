"""A participant that rolls out: the same game by any engine, lap after lap."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.performance.line import Line
from benchmarks.performance.workload import Workload, play, tokenizer_of
from tsr_lightning.engines.base import Engine

WARM_UP = 999  # a lap that nobody is asked for


@dataclass(frozen=True)
class Seat:
    """An engine that is ready.

    Args:
        engine: generates.
        settings: its own, in words.
        renew: called before every lap, as if the weights had changed: nothing computed before may be used again.
    """

    engine: Engine
    settings: str
    renew: Callable[[], object]


def roll_out(line: Line, work: Workload, folder: Path, sit_down: Callable[[Workload, Path], Seat]) -> None:
    seat = sit_down(work, folder)
    tokenizer = tokenizer_of(folder)
    play(replace(work, groups=1), seat.engine, tokenizer, WARM_UP)
    line.ready(seat.settings)
    for lap in line:
        seat.renew()
        line.answer(play(work, seat.engine, tokenizer, lap).as_json())
