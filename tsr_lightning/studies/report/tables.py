"""Writes the comparisons as tables of texts, which a page or Markdown shows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tsr_lightning.statistics import Estimate
from tsr_lightning.studies.report.comparisons import AtBudget, End, Pair, Reached
from tsr_lightning.studies.report.curves import BUDGETS


@dataclass(frozen=True)
class Table:
    """Texts in rows and columns."""

    title: str
    header: tuple[str, ...]  # [C]
    rows: tuple[tuple[str, ...], ...]  # [R][C]


def ends_table(rows: Sequence[End], title: str) -> Table:
    baselines = any(row.baseline for row in rows)
    header = ("arm", "protocol", "seeds", "start", "end", "spread of seeds", "end − start")
    return Table(
        title,
        (*header, *(("end − baseline", "baseline") if baselines else ())),
        tuple(
            (
                *(row.arm, row.protocol, _seeds(row), _rate(row.start), _estimate(row.end, "")),
                *("one seed" if row.spread is None else _rate(row.spread), _estimate(row.gain)),
                *((_estimate(row.against), row.baseline or "") if baselines else ()),
            )
            for row in rows
        ),
    )


def _seeds(row: End) -> str:
    is_fewer = row.baseline is not None and row.shared_seeds < row.seeds
    return f"{row.seeds}, of which its baseline has {row.shared_seeds}" if is_fewer else str(row.seeds)


def budgets_table(rows: Sequence[AtBudget], title: str) -> Table:
    """Returns a row per arm and protocol, with a pair of columns per budget that is no count of epochs."""
    shown = [budget for budget in BUDGETS if any(row.budget == budget for row in rows)]
    common = {row.budget: row.common for row in rows}
    by_arm: dict[tuple[str, str], dict[str, AtBudget]] = {}
    for row in rows:
        by_arm.setdefault((row.arm, row.protocol), {})[row.budget] = row
    columns: list[str] = []
    for budget in shown:
        columns += [f"at {_amount(common[budget])} {BUDGETS[budget]}", "− baseline, at"]
    cells = []
    for (arm, protocol), own in by_arm.items():
        line = [arm, protocol]
        for budget in shown:
            at = own.get(budget)
            line += [_rate(at.success), _against(at)] if at else ["", ""]
        cells.append(tuple(line))
    return Table(title, ("arm", "protocol", *columns), tuple(cells))


def pairs_table(rows: Sequence[Pair], title: str) -> Table:
    """Returns a row per pair and protocol, with a column per budget that is no count of epochs."""
    shown = [budget for budget in BUDGETS if any(budget in row.equal for row in rows)]
    return Table(
        title,
        ("pair", "protocol", "seeds of both", "after all epochs", *(f"at equal {BUDGETS[budget]}" for budget in shown)),
        tuple(
            (
                *(f"{row.arm} − {row.other}", row.protocol, str(row.seeds), _estimate(row.end)),
                *(
                    f"{_estimate(row.equal[budget])} at {_amount(row.spent[budget])}" if budget in row.equal else ""
                    for budget in shown
                ),
            )
            for row in rows
        ),
    )


def reached_table(rows: Iterable[Reached], title: str) -> Table:
    return Table(
        title,
        ("arm", "protocol", "success rate", "seeds that reach it", *BUDGETS.values()),
        tuple(
            (
                *(row.arm, row.protocol, f"{row.threshold:.3f}", f"{row.reached} of {row.seeds}"),
                *(_amount(row.spent[budget]) if row.spent[budget] != float("inf") else "–" for budget in BUDGETS),
            )
            for row in rows
        ),
    )


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _estimate(estimate: Estimate | None, sign: str = "+") -> str:
    if estimate is None:
        return ""
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def _against(row: AtBudget) -> str:
    return f"{_estimate(row.against)} at {_amount(row.shared)}" if row.against and row.shared is not None else ""


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
