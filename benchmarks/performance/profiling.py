"""Where our seconds go, both phases under a profiler.

python -m benchmarks.performance.profiling
python -m benchmarks.performance.profiling --smollm2 --groups 1 --prompt 64 --tokens 12
"""

import argparse
import json
import os
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.performance.iteration import Stopwatch, agent_of, data_of, trainer_of
from benchmarks.performance.ours import sit_down
from benchmarks.performance.report import machine
from benchmarks.performance.workload import SMOLLM2, Workload, make_model, play, tokenizer_of

# The first kind whose fragment an operator's name contains; what no kind claims is named "other operators".
KINDS = {
    "attention": ("native::attend", "scaled_dot_product", "flash_attention", "bmm", "baddbmm"),
    "linear layers": ("addmm", "aten::mm", "mkldnn::_linear", "mkldnn_linear", "aten::linear", "matmul", "_Linear"),
    "gathering and copying": ("index", "gather", "copy_", "aten::cat", "scatter", "repeat", "contiguous", "clone"),
    "allocating": ("empty", "resize", "zeros", "zero_", "fill_"),
    "sampling": ("softmax", "cumsum", "searchsorted", "exp", "multinomial", "argmax", "nll_loss"),
    "optimizer": ("_foreach", "fused_adam", "lerp", "addcmul", "addcdiv", "optimizer"),
}


def kind_of(operator: str) -> str:
    found = (kind for kind, fragments in KINDS.items() if any(fragment in operator for fragment in fragments))
    return next(found, "other operators (norms, activations, rotations)")


def by_kind(recorded: profile, seconds: float) -> dict[str, float]:
    """Seconds by kind; what no operator accounts for is Python's, the environment's and the profiler's own."""
    kinds: dict[str, float] = defaultdict(float)
    for event in recorded.key_averages():
        kinds[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    kinds["outside of operators (Python)"] = max(0.0, seconds - sum(kinds.values()))
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def table(title: str, kinds: dict[str, float]) -> str:
    total = sum(kinds.values())
    lines = [f"| {kind} | {seconds:.2f} | {seconds / total:.0%} |\n" for kind, seconds in kinds.items()]
    return f"| {title} | seconds | share |\n|---|---|---|\n" + "".join(lines)


def of_rollout(work: Workload, folder: Path) -> dict[str, float]:
    """A warm one's."""
    engine = sit_down(work, folder).engine
    tokenizer = tokenizer_of(folder)
    play(work, engine, tokenizer, 0)
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        played = play(work, engine, tokenizer, 1)
    return by_kind(recorder, played.seconds)


def of_update(work: Workload, folder: Path) -> dict[str, float]:
    """The second epoch's, from the end of its rollout to its own end."""
    recorder = profile(activities=[ProfilerActivity.CPU])
    epochs: list[float] = []

    def rolled_out() -> None:
        if epochs:
            recorder.start()

    def ended(figures: dict[str, Any]) -> bool:
        if epochs:
            recorder.stop()
        epochs.append(figures["seconds_update"])
        return len(epochs) < 2

    trainer_of(Stopwatch(ended, rolled_out)).fit(agent_of(work, folder), datamodule=data_of(work))
    return by_kind(recorder, epochs[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance.profiling", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--groups", type=int, default=Workload().groups, help="instances, of 8 trajectories")
    parser.add_argument("--tokens", type=int, default=Workload().response_tokens, help="of a response")
    parser.add_argument("--prompt", type=int, default=Workload().prompt_tokens, help="tokens that a turn adds to it")
    parser.add_argument("--smollm2", action="store_true", help="a model of SmolLM2-135M's sizes; three turns")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=Path("runs/performance"), help="folder of profile.md, profile.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    size = Workload(shape=SMOLLM2, turns=3) if args.smollm2 else Workload()
    work = replace(size, groups=args.groups, response_tokens=args.tokens, prompt_tokens=args.prompt, dtype=args.dtype)
    with tempfile.TemporaryDirectory() as name:
        make_model(work.shape, Path(name), work.longest)
        figures = {
            f"rollout: {work.name}": of_rollout(work, Path(name)),
            f"rollout: {work.sampled().name}": of_rollout(work.sampled(), Path(name)),
            f"update: {work.name}": of_update(work, Path(name)),
        }
    tables = [f"{machine()}, {args.threads} threads, profiler on.\n", *(table(*item) for item in figures.items())]
    (args.out / "profile.md").write_text("\n".join(tables), encoding="utf-8")
    (args.out / "profile.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print("\n".join(tables))


if __name__ == "__main__":
    main()
