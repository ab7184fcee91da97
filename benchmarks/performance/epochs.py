"""Whole epochs under two settings in turn: `python -m benchmarks.performance.epochs`.

`staleness` compares rollouts before the updates with rollouts beside them, where environments wait; `logprobs` epochs
with and without the pass for old log-probabilities; `bits` base weights in float32 and in bfloat16 under an adapter;
`kernels` PyTorch's kernels and our C kernels, in both. `--model` names a pretrained model for any of them. Lap after
lap each setting trains for a few epochs in turn, of which the first is not counted.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.performance.growth import BASE
from benchmarks.performance.iteration import Stopwatch, agent_of, data_of, trainer_of
from benchmarks.performance.report import machine
from benchmarks.performance.workload import DTYPES, LADDER, Workload, make_model
from tsr_lightning.policy.spec import DtypeName, KernelsName, LoRA

WAITS = ((0.0, 0), (0.01, 0), (0.01, 4), (0.05, 0), (0.05, 4))  # seconds of a step, and workers
HEAD = (
    "| epoch | trajectories | a step waits, ms | workers | seconds | range | until the rollout is there | updates "
    "| first / this | updates, CPU s | tokens/s | KL |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Setting:
    """One side of a comparison: its name in the table, and keys of the data module and the policy."""

    name: str
    staleness: int = 0
    reuse_logprobs: bool = False
    dtype: DtypeName = "float32"
    adapter: LoRA | None = None
    kernels: KernelsName = "auto"


@dataclass(frozen=True)
class Point:
    """A setting on a workload: of every counted epoch the seconds, those before its updates began, and the rest; the
    updates' seconds of the processor, the rollout's tokens a second, and its KL from engine to trainer."""

    setting: Setting
    work: Workload
    seconds: tuple[float, ...]
    waiting: tuple[float, ...]
    updates: tuple[float, ...]
    updates_cpu: tuple[float, ...]
    tokens_per_second: tuple[float, ...]
    kl: tuple[float, ...]

    def line(self, first: "Point") -> str:
        return (
            f"| {self.setting.name} | {self.work.trajectories} | {1000 * self.work.wait:g} | {self.work.env_workers} "
            f"| {median(self.seconds):.2f} | {min(self.seconds):.2f}–{max(self.seconds):.2f} "
            f"| {median(self.waiting):.2f} | {median(self.updates):.2f} "
            f"| {median(first.seconds) / median(self.seconds):.2f} | {median(self.updates_cpu):.2f} "
            f"| {median(self.tokens_per_second):.0f} | {median(self.kl):.2g} |\n"
        )


STALENESS = (Setting("rollout before the updates"), Setting("rollout beside the updates", staleness=1))
LOGPROBS = (Setting("with the pass"), Setting("without the pass", reuse_logprobs=True))
BITS = tuple(Setting(dtype, dtype=dtype, adapter=LoRA(rank=16)) for dtype in DTYPES)
KERNELS = tuple(
    tuple(Setting(f"{dtype}, {name}", dtype=dtype, adapter=LoRA(rank=16), kernels=name) for name in ("torch", "native"))
    for dtype in DTYPES
)
WORK = replace(BASE.sampled(), shape=LADDER[0])
SHORT_PROMPTS = replace(WORK, groups=4, members=4, past_turns=0, response_tokens=12)
KINDS: dict[str, list[tuple[Workload, tuple[Setting, ...]]]] = {
    "staleness": [(replace(WORK, wait=wait, env_workers=count), STALENESS) for wait, count in WAITS],
    "logprobs": [(replace(WORK, groups=8, members=8), LOGPROBS)],  # of fewer, most are computed to be compared
    "bits": [(SHORT_PROMPTS, BITS)],
    "kernels": [(SHORT_PROMPTS, settings) for settings in KERNELS],
}


def epochs_of(work: Workload, folder: Path, setting: Setting, count: int) -> list[dict[str, Any]]:
    """The figures of so many epochs, after one that makes everything warm."""
    figures: list[dict[str, Any]] = []

    def ended(of_epoch: dict[str, Any]) -> bool:
        figures.append(of_epoch)
        return len(figures) <= count

    data = data_of(work, staleness=setting.staleness, reuse_logprobs=setting.reuse_logprobs)
    agent = agent_of(replace(work, dtype=setting.dtype, kernels=setting.kernels), folder, setting.adapter)
    trainer_of(Stopwatch(ended)).fit(agent, datamodule=data)
    return figures[1:]


def compare(
    work: Workload, settings: Sequence[Setting], laps: int, epochs: int, model: Path | None = None
) -> list[Point]:
    """One point per setting, with the model in a folder or one that is made for the work."""
    figures: dict[str, list[dict[str, Any]]] = {setting.name: [] for setting in settings}
    with tempfile.TemporaryDirectory() as name:
        if model is None:
            make_model(work.shape, Path(name), work.longest)
        for _ in range(laps):
            for setting in settings:
                figures[setting.name] += epochs_of(work, model or Path(name), setting, epochs)
    keys = ("seconds", "seconds_rollout", "seconds_update", "cpu_update", "tokens_per_second", "kl")
    return [Point(one, work, *(tuple(of[key] for of in figures[one.name]) for key in keys)) for one in settings]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance.epochs",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of comparisons; all by default")
    parser.add_argument("--model", type=Path, help="folder of a pretrained model; by default one is made")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="that count, of each setting in each lap")
    parser.add_argument("--out", type=Path, default=Path("runs/performance"), help="of epochs.md and epochs.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    points: list[Point] = []
    text = f"{machine()}, {args.threads} threads; {args.epochs} epochs in each of {args.laps} laps.\n\n{HEAD}"
    for of, settings in [one for kind in args.kinds for one in KINDS[kind]]:
        found = compare(of, settings, args.laps, args.epochs, args.model)
        points += found
        text += "".join(point.line(found[0]) for point in found)
        (args.out / "epochs.md").write_text(text, encoding="utf-8")
        figures = [asdict(point) | {"work": point.work.as_json()} for point in points]
        (args.out / "epochs.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
