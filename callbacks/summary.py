"""What Evaluation prints at a run's end, and what it writes of both ends."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from callbacks import table
from callbacks.costs import RunCosts
from callbacks.measurement import Measurement
from tsr_lightning.statistics import Difference

_NO_EPISODES = (
    "Evaluation: nothing was measured, since no held-out episode was run (see trainer.limit_val_batches and "
    "data.evaluations)"
)


def print_changes(before: Mapping[str, Measurement], after: Mapping[str, Measurement], costs: RunCosts) -> None:
    """Prints what training changed, by protocol."""
    if not before and not after:
        print(_NO_EPISODES, flush=True)
        return
    notes = [table.INTERVALS, table.describe_costs(costs)]
    if not after:
        notes.append("no validation ran after training (see trainer.check_val_every_n_epoch)")
        table.show("Held-out instances before training", table.each(before), notes)
        return
    if not before:
        notes.append(
            "the start was not measured, so nothing is known to be newly solved: trainer.num_sanity_val_steps: -1 "
            "does that"
        )
    if missing := [name for name in before if name not in after]:
        notes.append(f"not measured after training: {', '.join(missing)} (tsr validate does that)")
    table.show("Held-out instances before and after training", table.changes(before, after), notes)


def print_figures(measured: Mapping[str, Measurement]) -> None:
    """Prints the figures of one policy, by protocol."""
    if not measured:
        print(_NO_EPISODES, flush=True)
        return
    updates = next(iter(measured.values())).updates
    heading = f"Held-out instances, policy after {updates:,} updates"
    table.show(heading, table.each(measured), [table.INTERVALS])


def to_plain(
    before: Mapping[str, Measurement], after: Mapping[str, Measurement], costs: RunCosts | None
) -> dict[str, Any]:
    """Both ends of a run by protocol, their differences, and what it cost, where a run cost it."""
    return {
        "run": None if costs is None else asdict(costs),
        "evaluations": {name: _ends(before.get(name), after.get(name)) for name in {**before, **after}},
    }


def _ends(before: Measurement | None, after: Measurement | None) -> dict[str, Any]:
    difference = table.paired(before, after) if before is not None and after is not None else None
    return {
        "before": None if before is None else before.to_plain(),
        "after": None if after is None else after.to_plain(),
        "difference": None if difference is None else _plain_difference(difference),
    }


def _plain_difference(difference: Difference) -> dict[str, Any]:
    value, low, high, _ = difference.estimate
    return {"value": value, "interval": [low, high], "instances": difference.instances}
