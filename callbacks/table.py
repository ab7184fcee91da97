"""The table that a run ends with: the figures of evaluations in columns. Knows no Lightning."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich import get_console
from rich.table import Table as RichTable
from rich.text import Text

from callbacks.costs import RunCosts
from callbacks.measurement import Measurement
from tsr_lightning import statistics
from tsr_lightning.durations import duration
from tsr_lightning.statistics import Difference, Estimate

_LABELS = {
    "success_rate": "success rate",
    "return": "return",
    "turns": "turns",
    "valid_actions": "valid actions",
    "effective_actions": "effective actions",
    "response_tokens_per_turn": "response tokens per turn",
    "response_tokens_per_episode": "response tokens per episode",
    "entropy_per_token": "entropy per token, nats",
    "entropy_per_turn": "entropy per turn, nats",
    "search_gap/success_rate": "success rate above plain samples",
    "search_gap/return": "return above plain samples",
    "never_solved_at_start": "instances never solved at the start",
    "newly_solved": "of these solved now",
    "newly_solved_share": "of these solved now, share",
    "no_longer_solved": "instances solved at the start alone",
    "tokens_generated": "cost: tokens generated",
    "env_steps": "cost: environment steps",
    "seconds": "cost: seconds",
    "episodes_lost": "episodes lost to failures of the environment, in no figure",
}
INTERVALS = "[low, high]: 95% intervals over instances; that of the difference is paired over the same instances"
_HIDDEN = {"pass@1"}  # equal to the success rate
_COUNTS = {
    "tokens_generated",
    "env_steps",
    "never_solved_at_start",
    "newly_solved",
    "no_longer_solved",
    "episodes_lost",
}


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: tuple[str, ...]  # [C]
    rows: tuple[tuple[str, ...], ...]  # [R][C]
    notes: tuple[str, ...] = ()


def each(measured: Mapping[str, Measurement]) -> list[Table]:
    """One table per protocol."""
    return [
        Table(title(name, one), ("", "measured"), tuple((label(key), cell(one, key)) for key in _shown(one)))
        for name, one in measured.items()
    ]


def changes(before: Mapping[str, Measurement], after: Mapping[str, Measurement]) -> list[Table]:
    """One table per protocol, before and after training; only after where nothing was measured before."""
    return [comparison(name, before.get(name), measured) for name, measured in after.items()]


def comparison(name: str, before: Measurement | None, after: Measurement) -> Table:
    header = f"after {_plural(after.epochs, 'epoch')}"
    if before is None:
        return Table(title(name, after), ("", header), tuple((label(key), cell(after, key)) for key in _shown(after)))
    difference = paired(before, after)
    rows = tuple(
        (label(key), cell(before, key), cell(after, key), _change(key, before, after, difference))
        for key in _shown_in_either(before, after)
    )
    notes = tuple(_notes(before, after, difference))
    return Table(title(name, after), ("", "before", header, "difference"), rows, notes)


def title(name: str, measured: Measurement) -> str:
    return f"{name}: {describe_protocol(measured.protocol)}, {describe_instances(measured)}"


def paired(before: Measurement, after: Measurement) -> Difference | None:
    """The difference in success rate; None without a common instance or under different protocols."""
    if before.protocol != after.protocol:
        return None
    return statistics.paired_difference(before.outcomes, after.outcomes)


def describe_protocol(settings: Mapping[str, Any]) -> str:
    temperature = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    search = "no search" if settings["search"] is None else f"search {settings['search']}"
    return f"{temperature}, {_plural(settings['samples'], 'sample')} per instance, {search}"


def describe_instances(measured: Measurement) -> str:
    return _plural(len(measured.outcomes), "held-out instance")


def describe_costs(cost: RunCosts) -> str:
    return (
        f"cost of the run: {_plural(cost.epochs, 'epoch')}, {_plural(cost.updates, 'update')}, "
        f"{duration(cost.seconds)} (evaluation {duration(cost.evaluation_seconds)}); "
        f"rollouts: {cost.tokens_generated:,} tokens generated, {cost.env_steps:,} environment steps{_failures(cost)}"
    )


def _failures(cost: RunCosts) -> str:
    if not cost.env_failures and not cost.trajectories_lost:
        return ""
    lost = _plural(cost.trajectories_lost, "trajectory", "trajectories")
    return f", {_plural(cost.env_failures, 'failed call')} of the environment, {lost} left out for it"


def label(key: str) -> str:
    return _LABELS.get(key, key)


def cell(measured: Measurement, key: str) -> str:
    if key not in measured.figures:
        return ""
    value = measured.figures[key]
    if key == "success_rate":
        return f"{value:.3f} {_interval(measured.success)}"
    return f"{value:,.0f}" if key in _COUNTS else f"{value:.1f}" if key == "seconds" else f"{value:.3f}"


def render(tables: list[Table], notes: list[str]) -> str:
    """Plain text, for a log file."""
    return "\n\n".join([*map(_render_one, tables), "\n".join(notes)]).rstrip() + "\n"


def show(heading: str, tables: list[Table], notes: list[str]) -> None:
    """Prints to standard output, with rich on a terminal."""
    if not sys.stdout.isatty():
        print(f"\n{heading}\n\n{render(tables, notes)}", flush=True)
        return
    console = get_console()  # the one that Lightning's progress bar uses
    console.print(Text(f"\n{heading}", style="bold"))
    for table in tables:
        rich_table = RichTable(title=Text(table.title), title_justify="left")
        for column in table.header:
            rich_table.add_column(Text(column), no_wrap=True)
        for row in table.rows:
            rich_table.add_row(*map(Text, row))  # a Text, because rich would take an interval's brackets for markup
        console.print(rich_table)
        for note in table.notes:
            console.print(Text(note))
    for note in notes:
        console.print(Text(note))


def _shown(measured: Measurement) -> list[str]:
    return [key for key in measured.figures if key not in _HIDDEN]


def _shown_in_either(before: Measurement, after: Measurement) -> list[str]:
    """The figures of after, and what was lost before."""
    lost_before = "episodes_lost" in before.figures and "episodes_lost" not in after.figures
    return [*_shown(after), *(["episodes_lost"] if lost_before else [])]


def _change(key: str, before: Measurement, after: Measurement, difference: Difference | None) -> str:
    if difference is None:
        return ""
    if key == "success_rate":
        return f"{difference.estimate.value:+.3f} {_interval(difference.estimate, sign='+')}"
    if key in _COUNTS or key == "seconds" or key not in before.figures:
        return ""
    return f"{after.figures[key] - before.figures[key]:+.3f}"


def _notes(before: Measurement, after: Measurement, difference: Difference | None) -> list[str]:
    if before.protocol != after.protocol:
        return [f"before was measured under another protocol ({describe_protocol(before.protocol)}): no difference"]
    if difference is None:
        return ["before and after have no instance in common: no difference"]
    if before.outcomes.keys() != after.outcomes.keys():
        return [f"before: {describe_instances(before)}; the difference is over the {difference.instances} in both"]
    return []


def _render_one(table: Table) -> str:
    lines = [table.header, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    text = ["   ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    rule = "-" * max(map(len, text))
    return "\n".join([table.title, rule, text[0], rule, *text[1:], rule, *table.notes])


def _interval(estimate: Estimate, sign: str = "") -> str:
    return f"[{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def _plural(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"
