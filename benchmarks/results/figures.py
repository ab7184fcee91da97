"""Formats numbers, tables and pictures of docs/results.md."""

import math
from collections.abc import Iterable, Sequence
from io import BytesIO

from matplotlib import pyplot
from matplotlib.figure import Figure

from tsr_lightning.statistics import Estimate


def rate(value: float, *, bold: bool = False) -> str:
    """Writes a rate without its zero: 0.4984 -> .498."""
    text = f"{value:.3f}".removeprefix("0")
    return f"**{text}**" if bold else text


def rates(values: Sequence[float]) -> str:
    """Writes the rates of the seeds, to stand after their mean; nothing for one seed, which is its own mean."""
    return f" ({' '.join(map(rate, values))})" if len(values) > 1 else ""


def thousands(tokens: float) -> str:
    """Writes a number of tokens in thousands; nothing for none."""
    return f"{tokens / 1000:.0f}k" if tokens else ""


def points(value: float, sign: str = "") -> str:
    """Writes a difference of success rates in whole points; half a point goes away from zero, and what rounds to 0 from
    below keeps its sign."""
    whole = math.floor(abs(100 * value) + 0.5)
    return f"{-whole if value < 0 else whole:{sign}d}" if whole or value >= 0 else "-0"


def points_with_interval(estimate: Estimate) -> str:
    return f"{points(estimate.value, '+')} [{points(estimate.low)}, {points(estimate.high)}]"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table as Markdown, without a last newline."""
    return "\n".join([_line(header), "|" + "---|" * len(header), *map(_line, rows)])


def as_png(figure: Figure) -> bytes:
    """Returns a picture's file, and closes the picture."""
    figure.tight_layout()
    written = BytesIO()
    figure.savefig(written, format="png", dpi=100)
    pyplot.close(figure)
    return written.getvalue()


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
