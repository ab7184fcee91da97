"""A participant's process: `python -m benchmarks.performance.participant ours FOLDER WORKLOAD THREADS`.

Each is a module with `take_part(line, work, folder)`, imported only in its own process, where its packages are.
"""

import importlib
import json
import sys
from pathlib import Path

import torch

from benchmarks.performance.line import Line
from benchmarks.performance.workload import Workload

MODULES = {
    "ours": "benchmarks.performance.ours",
    "generate": "benchmarks.performance.rivals.generate",
    "continuous": "benchmarks.performance.rivals.continuous",
    "llama.cpp": "benchmarks.performance.rivals.llama_cpp",
    "vllm": "benchmarks.performance.rivals.vllm",
    "ours, whole iteration": "benchmarks.performance.iteration",
    "ours, whole iteration with LoRA": "benchmarks.performance.adapter",
    "trl": "benchmarks.performance.rivals.trl",
    "agilerl": "benchmarks.performance.rivals.agilerl",
}


def main() -> None:
    name, folder, workload, threads = sys.argv[1:]
    line = Line.of_this_process()
    torch.set_num_threads(int(threads))
    importlib.import_module(MODULES[name]).take_part(line, Workload.of_json(json.loads(workload)), Path(folder))


if __name__ == "__main__":  # vLLM starts processes that import this file again
    main()
