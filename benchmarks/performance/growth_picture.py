"""The tables of growth as a picture."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
COLUMNS = 5
LINES = {
    "seconds": ("rollout", "#08519c", "-"),
    "floor_seconds": ("its floor", "#08519c", ":"),
    "update_seconds": ("update", "#a50f15", "-"),
}


def draw(axes: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """One panel per size that grows; the further the solid line lies above the dotted one, the more is left."""
    from matplotlib import pyplot, ticker

    rows = -(-len(axes) // COLUMNS)
    figure, panels = pyplot.subplots(rows, COLUMNS, figsize=(3 * COLUMNS, 2.6 * rows), squeeze=False)
    for panel in panels.flat:
        panel.set_visible(False)
    for panel, (name, points) in zip(panels.flat, axes.items(), strict=False):
        panel.set_visible(True)
        labels = [point["label"] for point in points]
        for key, (label, colour, style) in LINES.items():
            panel.plot(labels, [point[key] for point in points], style, color=colour, label=label, marker="o", ms=3)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())
        panel.tick_params(labelsize="small")
        panel.set_xlabel(name)
        panel.grid(alpha=0.3, which="both")
    for row in panels:
        row[0].set_ylabel("seconds")
    panels[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
