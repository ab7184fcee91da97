"""Does every objective train from its own YAML? Hard Sokoban levels on plain samples, each objective x seeds.

Success on held-out levels every 20 epochs, sampled and greedy. As a table, a JSON and a picture of the curves.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

from benchmarks.curves import CellFigures, CurveStudy
from benchmarks.report import PROTOCOLS
from benchmarks.stability import EPOCHS, EVERY, HARD
from benchmarks.study import CONFIGS, SEEDS, Cell

matplotlib.use("Agg")
LEARNS_FROM_SAMPLES = sorted(path.stem for path in (CONFIGS / "objective").glob("*.yaml") if path.stem != "sft")
_CELLS = [
    Cell(
        "sokoban",
        objective,
        "sample",
        seed,
        EPOCHS,
        levels=HARD,
        evaluate_every=EVERY,
        measure_start=(objective, seed) == (LEARNS_FROM_SAMPLES[0], SEEDS[0]),
    )
    for seed in SEEDS
    for objective in LEARNS_FROM_SAMPLES
]

_PREFACE = """# The objectives side by side

Made by `python -m benchmarks --objectives` from `configs/sokoban.yaml`, `configs/search/sample.yaml` and one overlay of
`configs/objective/` each; `objectives_study.json` holds the same figures. Sokoban levels whose shortest solution has 6
to 10 moves, the embedded policy, plain samples, 60 epochs of 16 instances x 8, half of the groups kept. Judged on 256
held-out levels without search: sampled at temperature 1 (two episodes each) and greedily. One thread a run, two runs
side by side; seconds are of training, evaluation apart. The interval is of the paired difference between end and start
over instances, seeds pooled. The standard error of one figure is about 0.02 sampled and 0.03 greedy.

Step size, filter and batch are those of `configs/sokoban.yaml`, which were chosen with GRPO and PPO. No objective was
tuned for this table, so it says that each trains as shipped, and not which is best. DAPO draws instances until 16
groups have signal, so it takes twice the tokens. Steps are small at this step size (GRPO, seed 1: k3 between updates
5e-5, one token in ten thousand clipped), so that surrogates and clips can hardly differ here, but for GSPO, whose
widths clip 23% of the tokens.

"""


def _draw(rows: Sequence[CellFigures], path: Path) -> None:
    """A panel per way of playing; a line per objective, the mean of its seeds."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PROTOCOLS), figsize=(11, 5.2), sharex=True)
    colours = pyplot.get_cmap("tab20")
    for axis, protocol in zip(axes, PROTOCOLS, strict=True):
        mine = [row for row in rows if row["protocol"] == protocol]
        for i, row in enumerate(mine):
            points = [fmean(point) for point in zip(*row["curves"], strict=True)]
            axis.plot(row["epochs"], points, color=colours(i % 20), label=row["objective"])
        axis.axhline(mine[0]["curves"][0][0], color="#636363", linewidth=0.8)
        axis.set_title(protocol)
        axis.set_xlabel("epochs")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success on held-out levels")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=6, fontsize=9)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(path, dpi=110)


OBJECTIVES = CurveStudy(
    "objectives_study",
    _PREFACE,
    _CELLS,
    "Success while training, mean of the seeds",
    lambda row: row["objective"],
    _draw,
)
