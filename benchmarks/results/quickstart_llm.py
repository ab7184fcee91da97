"""The pretrained model of the README: its picture, and what each phase of its training brought."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib import pyplot

from benchmarks.results.figures import as_png, points_with_interval, rate, table
from tsr_lightning.statistics import Estimate
from tsr_lightning.studies.report.comparisons import difference, instance_sets
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.report.load import StudyResults

STUDY, SHIPPED = "quickstart_llm", "beam"
ARMS = (SHIPPED, "bfloat16")
DEMONSTRATED = 12  # epochs
_HEADER = ("", "untrained", f"{DEMONSTRATED} epochs of demonstrations", "24 epochs of the beam", "gain of the beam")


def phases_table(studies: Mapping[str, StudyResults]) -> str:
    """The success rate of each seed after each phase, and the gain of the second one with its interval."""
    lines: list[Sequence[str]] = []
    for arm in ARMS:
        for protocol, curves in _curves(studies, arm).items():
            for one in curves:
                phases = (one.success[0], one.at("epochs", DEMONSTRATED).mean(), one.success[-1])
                lines.append((f"`{arm}`, {protocol}, seed {one.seed}", *map(rate, phases), ""))
            gain = points_with_interval(_gain(curves))
            lines.append((f"**`{arm}`, {protocol}, all**", "", "", "", f"**{gain} points**"))
    return table(_HEADER, lines)


def quickstart_picture(studies: Mapping[str, StudyResults]) -> bytes:
    """Draws success on held-out lakes against epochs, as a PNG: the mean of the seeds and their range."""
    figure, axis = pyplot.subplots(figsize=(7, 3.2))
    for place, (protocol, curves) in enumerate(_curves(studies, SHIPPED).items()):
        epochs, success = curves[0].costs["epochs"], np.stack([one.success for one in curves])
        axis.plot(epochs, success.mean(axis=0), marker="o", markersize=3, color=f"C{place}", label=protocol)
        lowest, highest = success.min(axis=0), success.max(axis=0)
        axis.fill_between(epochs, lowest, highest, color=f"C{place}", alpha=0.15, linewidth=0)
    axis.axvline(DEMONSTRATED, color="grey", linestyle=":")
    axis.annotate("demonstrations", (DEMONSTRATED - 0.5, 0.93), ha="right", color="grey", fontsize=8)
    axis.annotate("its own beam search, no demonstration", (DEMONSTRATED + 0.5, 0.93), color="grey", fontsize=8)
    axis.set(xlabel="epochs", ylabel="success, held out", ylim=(0, 1))
    axis.legend(fontsize=8, loc="center left")
    axis.grid(alpha=0.3)
    return as_png(figure)


def _curves(studies: Mapping[str, StudyResults], arm: str) -> dict[str, Sequence[Curve]]:
    return {group.protocol: group.curves[arm] for group in instance_sets(studies[STUDY])}


def _gain(curves: Sequence[Curve]) -> Estimate:
    """The end minus the end of the demonstrations, paired by seed and instance."""
    begun = [replace(one, rates=one.at("epochs", DEMONSTRATED)[None], episodes=one.episodes[:1]) for one in curves]
    gain = difference(curves, begun, lambda one: one.rates[-1])
    assert gain is not None
    return gain
