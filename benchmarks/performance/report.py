"""Records as tables and ratios, in Markdown and JSON."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.performance.alternate import Record
from benchmarks.performance.floor import Rates, floor_seconds
from benchmarks.performance.trie import Trie

ROLLOUT_HEAD = (
    "| who | rollout | seconds | ms a trajectory | tokens computed | of the floor | padding | generated "
    "| floor, tokens | floor, s | times the floor |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
)
ITERATION_HEAD = (
    "| who | rollout | seconds | of rollout | of update | tokens computed in the rollout | generated |\n"
    "|---|---|---|---|---|---|---|\n"
)

_SAID = {True: "yes", False: "no", None: ""}


@dataclass(frozen=True)
class Ratio:
    """One claim in numbers."""

    claim: str
    value: float
    bound: float | None = None  # what is asked, if anything
    at_least: bool = True  # or at most

    @property
    def holds(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}

    def line(self) -> str:
        asked = "" if self.bound is None else f"{'≥' if self.at_least else '≤'} {self.bound:g}"
        return f"| {self.claim} | {self.value:.2f} | {asked} | {_SAID[self.holds]} |\n"


@dataclass(frozen=True)
class Measured:
    """A record of rollouts beside its floor."""

    record: Record
    rates: Rates

    @property
    def floor(self) -> Trie:
        """Of the first lap; the laps differ by the luck of the draws, a few tokens in a thousand."""
        return Trie(**self.record.laps[0]["floor"])

    @property
    def floor_seconds(self) -> float:
        return floor_seconds(self.floor, self.record.work.shape, self.rates)

    def line(self) -> str:
        record, floor = self.record, self.floor
        computed, padding, generated = (
            record.median_of("costs", key) for key in ("tokens_computed", "tokens_padding", "tokens_generated")
        )
        each = 1000 * record.seconds_per_trajectory
        return (
            f"| {record.name} | {record.work.name} | {spread(record)} | {each:.1f} | {computed:,.0f} "
            f"| {computed / floor.tokens:.2f} | {padding / (padding + computed):.1%} | {generated:,.0f} "
            f"| {floor.tokens:,} | {self.floor_seconds:.2f} | {record.seconds / self.floor_seconds:.1f} |\n"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **self.record.as_json(),
            "floor_seconds": self.floor_seconds,
            "rates": asdict(self.rates),
        }


def rollout_table(measured: Sequence[Measured]) -> str:
    return ROLLOUT_HEAD + "".join(one.line() for one in measured)


def iteration_table(records: Sequence[Record]) -> str:
    lines = []
    for record in records:
        figures = [record.median_of(key) for key in ("seconds_rollout", "seconds_update")]
        tokens = [record.median_of("costs", key) for key in ("tokens_computed", "tokens_generated")]
        lines.append(
            f"| {record.name} | {record.work.name} | {spread(record)} | {figures[0]:.2f} | {figures[1]:.2f} "
            f"| {tokens[0]:,.0f} | {tokens[1]:,.0f} |\n"
        )
    return ITERATION_HEAD + "".join(lines)


def ratio_table(ratios: Sequence[Ratio]) -> str:
    return "| claim | measured | asked | holds |\n|---|---|---|---|\n" + "".join(ratio.line() for ratio in ratios)


def settings_list(records: Sequence[Record]) -> str:
    return "".join(f"- {record.name}, {record.work.name}: {record.settings}\n" for record in records)


def spread(record: Record) -> str:
    """The median, and all between which the laps lie."""
    return f"{record.seconds:.2f} ({min(record.all_seconds):.2f} to {max(record.all_seconds):.2f})"


def machine() -> str:
    """The processor by name, as Linux tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"
