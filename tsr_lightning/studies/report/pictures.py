"""The curves as pictures: a panel per budget, the mean of the seeds as a line and their range as a band."""

from collections.abc import Sequence
from io import BytesIO

import matplotlib
import numpy as np
from matplotlib import pyplot

from tsr_lightning.studies.report.comparisons import InstanceSet
from tsr_lightning.studies.report.curves import BUDGETS, Curve, Floats

matplotlib.use("Agg")
_STYLES = ("-", "--", ":", "-.")
_COLOURS = 10


def draw(group: InstanceSet) -> bytes:
    """A PNG of all arms of a set."""
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), sharey=True)
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
    names = [f"{arm} ({len(curves)})" for arm, curves in group.curves.items()]
    lines = axes.flat[0].lines
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure.suptitle(title(group))
    figure.legend(lines, names, loc="lower center", ncols=columns, fontsize=9)
    figure.tight_layout(rect=(0, 0.02 + 0.028 * rows, 1, 1))
    written = BytesIO()
    figure.savefig(written, format="png", dpi=100)
    pyplot.close(figure)
    return written.getvalue()


def title(group: InstanceSet) -> str:
    parts = [group.study, group.label, group.protocol]
    return ", ".join(part for part in parts if part)


def at_common_evaluations(curves: Sequence[Curve], budget: str) -> tuple[Floats, Floats]:
    """Mean cost of the seeds, [E], and each seed's success, [S, E], at the epochs that all were evaluated after."""
    epochs = [one.costs["epochs"] for one in curves]
    common = [epoch for epoch in epochs[0] if all(epoch in other for other in epochs)]
    places = [np.searchsorted(own, common) for own in epochs]
    spent = np.asarray([one.costs[budget][place] for one, place in zip(curves, places, strict=True)])
    success = np.asarray([one.success[place] for one, place in zip(curves, places, strict=True)])
    return spent.mean(axis=0), success
