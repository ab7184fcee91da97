"""The study as a table, a JSON and a picture."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

from benchmarks.study import Finished
from callbacks.statistics import Outcomes, paired_difference, success_interval, success_rate

matplotlib.use("Agg")
PROTOCOLS = ("sampled", "greedy")
_STUDY = """# The learning study

Made by `python -m benchmarks --full` from the shipped configurations; `study.json` holds the same figures. Two cores,
two runs side by side on one thread each, sometimes beside other jobs, so seconds (of training, evaluation apart) are
comparable within a factor and tokens are exact. Per run: 20 epochs of two updates each; instances, trajectories and
step size are the configurations'; beam search keeps 2 of 4 candidates a turn and trains on its successes alone;
`sft-expert` goes on with the noisy demonstrations that the policy began with (35% of the actions random);
controls marked `same-seconds` got as many epochs as fit into the seconds of the GRPO beam run of their seed. Judged on
256 held-out instances without search, at temperature 1 (two episodes each) and greedily. Before, after and the 95%
interval of the paired difference go over instances, seeds pooled; the seeds' own figures show the spread.

What these figures do not show:

- They compare whole recipes. The beam's cells also have the environment's push-distance score and train on successes
  alone, where sampling trains on relative returns. What search adds by itself would need sampling on successes alone
  and a beam under `Unchanged` (the paper's objective), which were not run here.
- Step size, epochs and GRPO's aggregation were chosen by looking at these same held-out instances with seed 1, the step
  size on beam runs alone; sampling got the same and no search of its own.
- The policies began with noise put on top of a better one on purpose (Sokoban: 0.50 before the noise, 0.375 after, with
  another prompt). Sharpening undoes part of that. The supervised control repeats 35% noise, so it cannot sharpen; one
  with cleaner demonstrations was not run.

"""
_WEBSHOP_STUDY = """# WebShop

Made by `python -m benchmarks --webshop` from `configs/webshop.yaml` and its overlays; `webshop_study.json` holds the
same figures. Two cores, two runs side by side on one thread each, so seconds (of training, evaluation apart) are
comparable within a factor and tokens are exact. Per run: 30 epochs of two updates each; instances, trajectories and
step size are the configurations'; beam search keeps 2 of 4 candidates a turn and trains on its successes alone. Judged
on 256 held-out instances without search, at temperature 1 (two episodes each) and greedily. Every instance has a shop
of its own, so held-out goals and products occur in no training. Before, after and the 95% interval of the paired
difference go over instances, seeds pooled; the seeds' own figures show the spread.

The runs were made before attention on CPUs became a kernel of our own, which moves draws near a step and takes fewer
seconds. With it, beam, seed 1, 10 epochs, 192 held-out instances: 0.195 before, 0.331 after, +0.135 [+0.077, +0.191].

In these same shops the oracle reaches 100%, and buying the first result 0%
(`tests/envs/test_webshop_generated_shops.py`).

What these figures do not show:

- They compare whole recipes: beam search also has the environment's score (the best reward within reach), and trains on
  successes alone where sampling trains on relative returns.
- 30 epochs were chosen after one run each of 20 and 30 with seed 1, on 128 of these instances; step size, batch and
  aggregation are Sokoban's.
- Most of what is missing is one thing: an article that fits by title and price may not have the options, and the policy
  seldom turns back. Neither recipe taught it that within 30 epochs.

"""


@dataclass(frozen=True)
class Report:
    """What is written of a study.

    Args:
        name: of its files.
        preface: what stands above its table.
    """

    name: str
    preface: str


STUDY = Report("study", _STUDY)
WEBSHOP_STUDY = Report("webshop_study", _WEBSHOP_STUDY)


def write_report(report: Report, finished: Sequence[Finished], folder: Path) -> None:
    """Writes the table, a JSON and a picture under the report's name, and prints the table."""
    rows = [_row(runs, protocol) for runs in by_cell(finished).values() for protocol in PROTOCOLS]
    folder.mkdir(parents=True, exist_ok=True)
    table = _table(rows)
    picture = f"\n![Success after training, each seed a dot]({report.name}.png)\n"
    (folder / f"{report.name}.md").write_text(report.preface + table + picture, encoding="utf-8")
    (folder / f"{report.name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    _draw([row for row in rows if row["protocol"] == "sampled"], folder / f"{report.name}.png")
    print(table)


def by_cell(finished: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The runs of each cell, which differ in their seed."""
    cells: dict[str, list[Finished]] = defaultdict(list)
    for run in finished:
        cells[run.cell.name].append(run)
    return dict(sorted(cells.items()))


def _row(runs: Sequence[Finished], protocol: str) -> dict[str, Any]:
    """Figures of one cell: the seeds' episodes pooled per instance, so that intervals go over instances."""
    before = pooled([run.results["evaluations"][protocol]["before"] for run in runs])
    after = pooled([run.results["evaluations"][protocol]["after"] for run in runs])
    difference = paired_difference(before, after)
    if difference is None:
        raise ValueError(f"{runs[0].cell.name} was not evaluated")
    costs = [run.results["run"] for run in runs]
    return {
        "task": runs[0].cell.task,
        "training": runs[0].cell.label,
        "protocol": protocol,
        "seeds": [run.cell.seed for run in runs],
        "before": success_rate(before),
        "after": success_rate(after),
        "after_interval": list(success_interval(after)),
        "after_by_seed": [success_rate(pooled([run.results["evaluations"][protocol]["after"]])) for run in runs],
        "difference": difference.value,
        "difference_interval": list(difference.interval),
        "epochs": fmean(run.epochs for run in runs),
        "updates": fmean(cost["updates"] for cost in costs),
        "seconds": fmean(cost["seconds"] - cost["evaluation_seconds"] for cost in costs),
        "tokens_generated": fmean(cost["tokens_generated"] for cost in costs),
        "env_steps": fmean(cost["env_steps"] for cost in costs),
    }


def pooled(measured: Sequence[dict[str, Any]]) -> Outcomes:
    """The episodes of several evaluations by instance."""
    outcomes: dict[int, tuple[int, int]] = {}
    for one in measured:
        for counts in one["instances"]:
            successes, episodes = outcomes.get(counts["instance"], (0, 0))
            outcomes[counts["instance"]] = (successes + counts["successes"], episodes + counts["episodes"])
    return outcomes


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = (
        "| task | training | judged | before | after (each seed) | difference [95%] | epochs | updates | seconds "
        "| tokens generated |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_line(row) for row in rows)


def _line(row: dict[str, Any]) -> str:
    seeds = ", ".join(f"{rate:.3f}" for rate in row["after_by_seed"])
    low, high = row["difference_interval"]
    return (
        f"| {row['task']} | {row['training']} | {row['protocol']} | {row['before']:.3f} | {row['after']:.3f} ({seeds}) "
        f"| {row['difference']:+.3f} [{low:+.3f}, {high:+.3f}] | {row['epochs']:.0f} | {row['updates']:.0f} "
        f"| {row['seconds']:.0f} | {row['tokens_generated']:,.0f} |\n"
    )


def _draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Success after training by cell, with the seeds as dots and the start as a line."""
    from matplotlib import pyplot

    tasks = sorted({row["task"] for row in rows}, reverse=True)
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(6.5 * len(tasks), 4), sharey=False, squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        mine = [row for row in rows if row["task"] == task]
        places = range(len(mine))
        axis.barh(places, [row["after"] for row in mine], color="#9ecae1")
        for place, row in zip(places, mine, strict=True):
            axis.plot(row["after_by_seed"], [place] * len(row["after_by_seed"]), "o", color="#08519c", markersize=4)
        axis.axvline(fmean(row["before"] for row in mine), color="#636363", linestyle="--")
        axis.set_yticks(list(places), [row["training"] for row in mine])
        axis.invert_yaxis()
        axis.set_xlabel("success, sampled at temperature 1")
        axis.set_title(f"{task} (dashed: before training)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
