"""The README's picture: success on held-out instances while training, from runs of the quickstart.

The model card of the embedded Sokoban policy has the commands of these runs.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

matplotlib.use("Agg")
LABELS = {"beam": "successes of beam search (2 of 4)", "sample": "successes of plain samples, six an instance"}
PROTOCOLS = {"sampled": "plain sampling at temperature 1", "greedy": "greedy"}
COLOURS = ("#08519c", "#a50f15")


def draw(runs: Path, out: Path) -> None:
    """Mean over seeds as a line, the seeds' range as a band; one panel for each protocol."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(ncols=len(PROTOCOLS), figsize=(9, 4), sharey=True)
    for axis, (protocol, title) in zip(axes, PROTOCOLS.items(), strict=True):
        for (name, label), colour in zip(LABELS.items(), COLOURS, strict=True):
            curves = [success_curve(folder, protocol) for folder in sorted((runs / name).glob("seed*"))]
            by_epoch: dict[int, list[float]] = defaultdict(list)
            for curve in curves:
                for epoch, rate in curve.items():
                    by_epoch[epoch].append(rate)
            epochs = sorted(epoch for epoch, rates in by_epoch.items() if len(rates) == len(curves))
            if not epochs:
                continue
            axis.plot(epochs, [fmean(by_epoch[epoch]) for epoch in epochs], color=colour, label=label, marker="o", ms=3)
            low, high = ([pick(by_epoch[epoch]) for epoch in epochs] for pick in (min, max))
            axis.fill_between(epochs, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_title(title)
        axis.set_xlabel("epochs (one rollout and its updates each)")
        axis.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success on 256 held-out levels")
    axes[0].legend()
    figure.suptitle("Sokoban 6×6: the quickstart, no search at test time")
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def success_curve(folder: Path, protocol: str) -> dict[int, float]:
    """Success on held-out instances by the epochs trained, of the run in a folder."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(f"val/{protocol}/success_rate")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/picture"))
    parser.add_argument("--out", type=Path, default=Path("docs/learning_curve.png"))
    args = parser.parse_args()
    draw(args.runs, args.out)
