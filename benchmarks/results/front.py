"""The picture of the README: the levels on which plain samples never succeed at first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.results.figures import as_png
from tsr_lightning.studies.report.build import build_report
from tsr_lightning.studies.report.comparisons import InstanceSet
from tsr_lightning.studies.report.load import StudyResults
from tsr_lightning.studies.report.pictures import at_common_evaluations

NAMES = {  # of the arms, in the order of their colours
    "longest-imitate": "successes of beam search",
    "longest-raft": "successes of plain samples (RAFT)",
    "longest-grpo": "GRPO on plain samples",
    "longest-ppo": "PPO on plain samples",
}


@dataclass(frozen=True)
class Panel:
    """Curves of a study.

    Args:
        study: its name.
        picture: of its report, which has the curves.
        arms: that are drawn, of `NAMES`.
        budget: the cost that success is drawn against.
        label: what its axis is called.
        unit: of the cost, on the axis.
    """

    study: str
    picture: str
    arms: Sequence[str]
    budget: str
    label: str
    unit: float


PANELS = [
    Panel(
        "sokoban_search",
        "sokoban_search-levels-longest-sampled.png",
        list(NAMES),
        "tokens_generated",
        "thousand tokens generated",
        1000.0,
    ),
    Panel(  # whose runs took turns on one machine, so that their seconds can be compared
        "sokoban_curriculum",
        "sokoban_curriculum-on-longest-sampled.png",
        ["longest-imitate", "longest-raft"],
        "train_seconds",
        "seconds of training, other levels",
        1.0,
    ),
]


def front_picture(studies: Mapping[str, StudyResults]) -> bytes:
    """Draws success on held-out levels of 8 to 10 moves against tokens and seconds, as a PNG.

    Args:
        studies: by the names of their files.
    """
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(9, 3.6), sharey=True)
    for axis, panel in zip(axes, PANELS, strict=True):
        group, _ = build_report([studies[panel.study]]).pictures[panel.picture]
        _draw(axis, panel, group)
    axes[0].set_ylabel("success, held out")
    axes[0].legend(fontsize=8)
    return as_png(figure)


def _draw(axis: Axes, panel: Panel, group: InstanceSet) -> None:
    for place, (arm, name) in enumerate(NAMES.items()):
        if arm not in panel.arms:
            continue
        spent, success = at_common_evaluations(group.curves[arm], panel.budget)
        spent = spent / panel.unit
        style = "--" if place == len(NAMES) - 1 else "-"  # the last two lie on one another
        axis.plot(spent, success.mean(axis=0), style, color=f"C{place}", marker="o", markersize=3, label=name)
        lowest, highest = success.min(axis=0), success.max(axis=0)
        axis.fill_between(spent, lowest, highest, color=f"C{place}", alpha=0.12, linewidth=0)
    axis.set_xlabel(panel.label)
    axis.grid(alpha=0.3)
