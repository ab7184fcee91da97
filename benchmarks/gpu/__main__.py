"""`python -m benchmarks.gpu`: the default engine on a GPU beside vLLM, TRL and `generate`, and beside the roofline.

For the shape of Qwen2.5-0.5B with random weights, which are made here: nothing is downloaded. `--model FOLDER` takes a
model's own weights, or random ones of its shape if there is `config.json` alone; hybrids too. `--tiny` runs it to its
end with sizes of seconds, on any device; without a GPU it is chosen. Rivals take part where they are installed:

    python -m venv vllm && vllm/bin/pip install vllm==0.32.0 gymnasium
    python -m venv trl && trl/bin/pip install trl==1.16.0 gymnasium
    python -m benchmarks.gpu --vllm vllm/bin/python --trl trl/bin/python

`--only "decode (flex)" trl` measures what has one of these texts in its line of progress.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.contest import Entry, Outcome, play
from benchmarks.gpu.decode import Decoded, Steps, bandwidth, measure
from benchmarks.gpu.models import Model, of_folder, of_shape
from benchmarks.gpu.report import contest_table, decode_table
from benchmarks.performance.comparisons import GENERATE, OURS, OURS_WHOLE, TRL, VLLM
from benchmarks.performance.report import machine, settings_list
from benchmarks.performance.workload import ModelShape, Workload
from tsr_lightning.policy.spec import KernelsName

QWEN = ModelShape(hidden=896, layers=24, heads=14, key_heads=2, intermediate=4864, vocabulary=151_936)  # 2.5, 0.5B
SMALL = ModelShape(hidden=64, layers=2, heads=4, key_heads=2, intermediate=96, vocabulary=1200)
KERNELS: tuple[KernelsName, ...] = ("flex", "torch")  # what is for GPUs, and what any device has
PACKAGES = ("torch", "triton", "transformers", "lightning", "bitsandbytes")


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Args:
        steps: decode steps beside the roofline.
        rollouts: with search.
        iterations: rollout and update.
        generate: what `generate` plays too, which is slow.
        copy_mib: copied to measure the bandwidth.
        laps: counted rounds of each.
    """

    steps: tuple[Steps, ...]
    rollouts: tuple[Workload, ...]
    iterations: tuple[Workload, ...]
    generate: tuple[Workload, ...]
    copy_mib: int
    laps: int

    @property
    def longest(self) -> int:
        works = max(work.longest for work in (*self.rollouts, *self.iterations, *self.generate))
        return max(works, *(steps.prompt_tokens + steps.response_tokens for steps in self.steps))


@dataclass
class Results:
    """What was measured so far."""

    machine: dict[str, Any]
    absent: list[str]
    decoded: list[Decoded] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "absent": self.absent,
            "decode": [one.as_json() for one in self.decoded],
            "rollouts_and_iterations": [one.as_json() for one in self.outcomes],
        }

    def text(self) -> str:
        facts = [f"{key}: {value}" for key, value in self.machine.items()]
        records = [one.record for one in self.outcomes if one.record is not None]
        parts = [
            "; ".join([*facts, *self.absent]) + "\n",
            decode_table(self.decoded) if self.decoded else "",
            contest_table(self.outcomes) if self.outcomes else "",
            settings_list(records),
        ]
        return "\n".join(part for part in parts if part)


def full(device: str, shape: ModelShape) -> Plan:
    memory = torch.cuda.get_device_properties(0).total_memory // 2**20 if device == "cuda" else 16_384
    base = Workload(
        shape=shape,
        dtype="bfloat16",
        device=device,
        kv_cache_mib=min(16_384, memory // 3),
        state_cache_mib=memory // 4,
        response_tokens=32,
    )
    rollouts = tuple(replace(base, response_tokens=tokens) for tokens in (32, 128))
    sizes = [(1, 1), (16, 4), (64, 8)]
    return Plan(
        steps=tuple(Steps(*size, 1024, tokens) for size in sizes for tokens in (32, 128)),
        rollouts=(*rollouts, *(work.sampled() for work in rollouts)),
        iterations=tuple(replace(work, groups=8).sampled() for work in rollouts),
        generate=(replace(rollouts[0], groups=4).sampled(),),
        copy_mib=1024,
        laps=3,
    )


def tiny(device: str, shape: ModelShape) -> Plan:
    base = Workload(
        shape=shape,
        device=device,
        turns=2,
        groups=2,
        members=2,
        candidates=2,
        prompt_tokens=30,
        response_tokens=3,
        kv_cache_mib=64,
    )
    return Plan(
        steps=(Steps(1, 1, 40, 4), Steps(2, 3, 40, 6)),
        rollouts=(base, replace(base, response_tokens=6, dtype="bfloat16")),
        iterations=(base.sampled(),),
        generate=(base.sampled(),),
        copy_mib=16,
        laps=1,
    )


def entries(plan: Plan, vllm: str | None, trl: str | None) -> list[Entry]:
    """Everyone who is there, on all that each plays."""
    ours = [Entry(OURS, replace(work, kernels=kernels)) for work in plan.rollouts for kernels in KERNELS]
    whole = [Entry(OURS_WHOLE, replace(work, kernels=kernels)) for work in plan.iterations for kernels in KERNELS]
    beside = [
        each for work in plan.generate for each in (Entry(OURS, replace(work, kernels="flex")), Entry(GENERATE, work))
    ]
    theirs = [Entry(VLLM, work, vllm) for work in plan.rollouts] if vllm else []
    theirs += [Entry(TRL, work, trl) for work in plan.iterations] if trl else []
    return [*ours, *whole, *beside, *theirs]


def measured_model(folder: Path | None, is_tiny: bool) -> Model:
    if folder is not None:
        return of_folder(folder)
    return of_shape("small", SMALL) if is_tiny else of_shape("Qwen2.5-0.5B's shape", QWEN)


def decode_title(steps: Steps, kernels: str) -> str:
    return f"decode ({kernels}): {steps.prompts} × {steps.siblings}, {steps.response_tokens} tokens"


def interpreter(package: str, given: str | None) -> str | None:
    """Of an environment that has it: the one named, or this one."""
    if given is not None:
        return given
    return sys.executable if importlib.util.find_spec(package) else None


def facts(device: str, rate: float) -> dict[str, Any]:
    """The machine and the packages."""
    card = {}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        card = {"gpu": properties.name, "memory, MiB": properties.total_memory // 2**20, "CUDA": torch.version.cuda}
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)}
    rounded = round(rate / 1e9, 1)
    return {**card, "processor": machine(), "copies, GB/s": rounded, "Python": platform.python_version(), **versions}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=None, metavar="FOLDER", help="a model to measure")
    parser.add_argument("--tiny", action="store_true", help="sizes of seconds, on any device")
    parser.add_argument("--vllm", default=None, metavar="PYTHON", help="interpreter of an environment with vLLM")
    parser.add_argument("--trl", default=None, metavar="PYTHON", help="interpreter of an environment with TRL")
    parser.add_argument("--laps", type=int, default=None, help="counted rounds of each; 3, or 1 with --tiny")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="what has one of these in its title")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the tables")
    args = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("there is no CUDA device: sizes are tiny, on the CPU, and no figure means anything", flush=True)
    is_tiny = args.tiny or device == "cpu"
    model = measured_model(args.model, is_tiny)
    plan = tiny(device, model.shape) if is_tiny else full(device, model.shape)
    plan = replace(plan, laps=args.laps or plan.laps)
    rivals = {name: interpreter(name, given) for name, given in (("vllm", args.vllm), ("trl", args.trl))}
    absent = [f"{name} is absent: give --{name} PYTHON" for name, python in rivals.items() if python is None]
    rate = bandwidth(device, plan.copy_mib)
    results = Results({"model": model.name, **facts(device, rate)}, absent)

    def is_wanted(title: str) -> bool:
        return any(text in title for text in args.only)

    contests = [each for each in entries(plan, rivals["vllm"], rivals["trl"]) if is_wanted(each.title)]
    decodes = [
        (steps, kernels) for steps in plan.steps for kernels in KERNELS if is_wanted(decode_title(steps, kernels))
    ]
    total, done = len(contests) + len(decodes), 0
    if not total:
        parser.error(f"--only {' '.join(args.only)}: no title has that in it, such as 'decode (flex)', 'beam' or 'trl'")

    def progress(what: str) -> None:
        nonlocal done
        done += 1
        print(f"[{done}/{total}] {what}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"writing {model.name}: a step reads {model.reads.weights / 1e6:,.0f}M weights", flush=True)
        model.write(folder, plan.longest)
        for steps, kernels in decodes:
            work = replace(plan.rollouts[0], kernels=kernels, response_tokens=steps.response_tokens)
            progress(decode_title(steps, kernels))
            results.decoded.append(measure(steps, work, model.reads, folder, rate, plan.laps))
            write(results, args.out)
        for entry in contests:
            progress(entry.title)
            results.outcomes.append(play(entry, folder, plan.laps, torch.get_num_threads(), args.out / "logs"))
            write(results, args.out)
    print(results.text())
    failed = [one for one in results.outcomes if one.failure is not None]
    if failed:
        sys.exit(f"{len(failed)} of {len(contests)} failed: {', '.join(one.entry.title for one in failed)}")


def write(results: Results, folder: Path) -> None:
    """After each measurement, so that a run that is cut short has what it measured."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.md").write_text(results.text(), encoding="utf-8")
    (folder / "gpu.json").write_text(json.dumps(results.as_json(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
