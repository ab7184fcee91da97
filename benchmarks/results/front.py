"""The picture of the README: the levels on which plain samples never succeed at first."""

from collections.abc import Mapping

from matplotlib import pyplot

from benchmarks.results.figures import as_png
from tsr_lightning.studies.report.build import build_report
from tsr_lightning.studies.report.comparisons import InstanceSet
from tsr_lightning.studies.report.load import StudyResults
from tsr_lightning.studies.report.pictures import at_common_evaluations

STUDY, PICTURE = "sokoban_search", "sokoban_search-levels-longest-sampled.png"
ARMS = {
    "longest-imitate": "successes of beam search",
    "longest-raft": "successes of plain samples (RAFT)",
    "longest-grpo": "GRPO on plain samples",
    "longest-ppo": "PPO on plain samples",
}
_PANELS = {"tokens_generated": ("thousand tokens generated", 1000.0), "train_seconds": ("seconds of training", 1.0)}


def front_picture(studies: Mapping[str, StudyResults]) -> bytes:
    """Draws success on held-out levels of 8 to 10 moves against tokens and seconds, as a PNG.

    Args:
        studies: by the names of their files.
    """
    group, _ = build_report([studies[STUDY]]).pictures[PICTURE]
    return _drawn(group)


def _drawn(group: InstanceSet) -> bytes:
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, (budget, (label, unit)) in zip(axes, _PANELS.items(), strict=True):
        for place, (arm, name) in enumerate(ARMS.items()):
            spent, success = at_common_evaluations(group.curves[arm], budget)
            style = "--" if place == len(ARMS) - 1 else "-"  # the last two lie on one another
            mean = success.mean(axis=0)
            axis.plot(spent / unit, mean, style, color=f"C{place}", marker="o", markersize=3, label=name)
            lowest, highest = success.min(axis=0), success.max(axis=0)
            axis.fill_between(spent / unit, lowest, highest, color=f"C{place}", alpha=0.12, linewidth=0)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success, held out")
    axes[0].legend(fontsize=8)
    return as_png(figure)
