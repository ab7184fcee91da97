"""Draws a set of arms: their curves, or their gains where they were evaluated at the start and the end alone."""

from collections.abc import Mapping, Sequence
from io import BytesIO

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from tsr_lightning.statistics import Estimate
from tsr_lightning.studies.report.comparisons import End, InstanceSet
from tsr_lightning.studies.report.curves import BUDGETS, Curve, Floats

matplotlib.use("Agg")
_STYLES = ("-", "--", ":", "-.")
_COLOURS = 10
_WIDTH = 11  # inches, of every picture
_ROW = 0.22  # inches, of a line of text


def draw(group: InstanceSet, ends: Sequence[End]) -> bytes:
    """Draws all arms of a set as a PNG.

    Args:
        group: the arms.
        ends: what they have at their ends.
    """
    gains = {end.arm: end.gain for end in ends if end.gain is not None}
    lengths = {len(one.rates) for curves in group.curves.values() for one in curves}
    return draw_gains(group, gains) if lengths == {2} and len(gains) == len(ends) else draw_curves(group)


def draw_gains(group: InstanceSet, gains: Mapping[str, Estimate]) -> bytes:
    """Draws a PNG with a row per arm, the largest gain first, and its interval."""
    figure, axis = pyplot.subplots(figsize=(_WIDTH, 1.5 + _ROW * len(gains)))
    rows = sorted(gains.items(), key=lambda row: row[1].value)
    for place, (_, gain) in enumerate(rows):
        axis.plot((gain.low, gain.high), (place, place), color="C0", linewidth=1.5)
        axis.plot(gain.value, place, color="C0", marker="o", markersize=4)
    axis.axvline(0, color="0.4", linewidth=1)
    axis.set_yticks(range(len(rows)), [_named(group, arm) for arm, _ in rows], fontsize=9)
    axis.set_ylim(-0.7, len(gains) - 0.3)
    axis.set_xlabel("success rate at the end − at the start, held out")
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(title(group))
    figure.tight_layout()
    return _png(figure)


def draw_curves(group: InstanceSet) -> bytes:
    """Draws a PNG with a panel per budget, the mean of the seeds as a line and their range as a band."""
    names = [_named(group, arm) for arm in group.curves]
    columns = min(
        4, len(names), max(1, 150 // (8 + max(map(len, names))))
    )  # some 150 characters are beside one another
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(2, 2, figsize=(_WIDTH, 7.5 + _ROW * rows), sharey=True)
    for axis, (budget, label) in zip(axes.flat, BUDGETS.items(), strict=True):
        for place, curves in enumerate(group.curves.values()):
            colour, style = f"C{place % _COLOURS}", _STYLES[place // _COLOURS % len(_STYLES)]
            spent, success = at_common_evaluations(curves, budget)
            axis.plot(spent, success.mean(axis=0), color=colour, linestyle=style, marker="o", markersize=3)
            axis.fill_between(spent, success.min(axis=0), success.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes.flat[0].xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))  # epochs
    for row in axes:
        row[0].set_ylabel("success rate, held out")
    figure.suptitle(title(group))
    figure.legend(axes.flat[0].lines, names, loc="lower center", ncols=columns, fontsize=9)
    figure.tight_layout(rect=(0, (0.2 + _ROW * rows) / figure.get_figheight(), 1, 1))
    return _png(figure)


def _named(group: InstanceSet, arm: str) -> str:
    return f"{arm} ({len(group.curves[arm])})"


def _png(figure: Figure) -> bytes:
    written = BytesIO()
    figure.savefig(written, format="png", dpi=100)
    pyplot.close(figure)
    return written.getvalue()


def title(group: InstanceSet) -> str:
    environment = f"on {group.environment}" if group.environment else ""
    parts = [group.study, group.label, environment, group.protocol]
    return ", ".join(part for part in parts if part)


def at_common_evaluations(curves: Sequence[Curve], budget: str) -> tuple[Floats, Floats]:
    """Returns the mean cost of the seeds, [E], and each seed's success, [S, E], at the epochs that all were evaluated
    after."""
    epochs = [one.costs["epochs"] for one in curves]
    common = [epoch for epoch in epochs[0] if all(epoch in other for other in epochs)]
    places = [np.searchsorted(own, common) for own in epochs]
    spent = np.asarray([one.costs[budget][place] for one, place in zip(curves, places, strict=True)])
    success = np.asarray([one.success[place] for one, place in zip(curves, places, strict=True)])
    return spent.mean(axis=0), success
