"""The picture of the README's pretrained model, and its figures by phase: demonstrations, then its own beam search."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO

from matplotlib import pyplot

from tsr_lightning.statistics import Estimate
from tsr_lightning.studies.report.comparisons import difference, instance_sets
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.report.load import StudyResults

STUDY, ARM = "quickstart_llm", "beam"
DEMONSTRATED = 12  # epochs
_HEADS = ("untrained", f"{DEMONSTRATED} epochs of demonstrations", "24 epochs of the beam", "what the beam brought")


def phases_table(studies: Mapping[str, StudyResults]) -> str:
    """Success of each seed after each phase, and what the second one brought."""
    lines = ["| | " + " | ".join(_HEADS) + " |", "|---" * (len(_HEADS) + 1) + "|"]
    for protocol, curves in _curves(studies).items():
        for one in curves:
            begun, ended = (f"{one.at('epochs', epoch).mean():.2f}" for epoch in (DEMONSTRATED, float("inf")))
            lines.append(f"| {protocol}, seed {one.seed} | {one.success[0]:.2f} | {begun} | {ended} | |")
        gain = _gain(curves)
        brought = f"{100 * gain.value:+.0f} [{100 * gain.low:+.0f}, {100 * gain.high:+.0f}]"
        lines.append(f"| **{protocol}, all** | | | | **{brought} points** |")
    return "\n".join(lines)


def quickstart_picture(studies: Mapping[str, StudyResults]) -> bytes:
    """Draws success on held-out lakes against epochs, as a PNG: the mean of the seeds and their range."""
    figure, axis = pyplot.subplots(figsize=(7, 3.2))
    for place, (protocol, curves) in enumerate(_curves(studies).items()):
        epochs = curves[0].costs["epochs"]
        success = [one.success for one in curves]
        mean, lowest, highest = ([pick(each) for each in zip(*success, strict=True)] for pick in (_mean, min, max))
        axis.plot(epochs, mean, marker="o", markersize=3, color=f"C{place}", label=protocol)
        axis.fill_between(epochs, lowest, highest, color=f"C{place}", alpha=0.15, linewidth=0)
    axis.axvline(DEMONSTRATED, color="grey", linestyle=":")
    axis.annotate("demonstrations", (DEMONSTRATED - 0.5, 0.93), ha="right", color="grey", fontsize=8)
    axis.annotate("its own beam search, no demonstration", (DEMONSTRATED + 0.5, 0.93), color="grey", fontsize=8)
    axis.set(xlabel="epochs", ylabel="success, held out", ylim=(0, 1))
    axis.legend(fontsize=8, loc="center left")
    axis.grid(alpha=0.3)
    figure.tight_layout()
    written = BytesIO()
    figure.savefig(written, format="png", dpi=100)
    pyplot.close(figure)
    return written.getvalue()


def _curves(studies: Mapping[str, StudyResults]) -> dict[str, Sequence[Curve]]:
    return {group.protocol: group.curves[ARM] for group in instance_sets(studies[STUDY])}


def _gain(curves: Sequence[Curve]) -> Estimate:
    """The end minus the end of the demonstrations, paired by seed and instance."""
    begun = [replace(one, rates=one.at("epochs", DEMONSTRATED)[None], episodes=one.episodes[:1]) for one in curves]
    gain = difference(curves, begun, lambda one: one.rates[-1])
    assert gain is not None
    return gain


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
