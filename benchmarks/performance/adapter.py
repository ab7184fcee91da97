"""A whole iteration by this project with a LoRA adapter, as AgileRL has it: an epoch a lap."""

from pathlib import Path

from benchmarks.performance.iteration import iterate
from benchmarks.performance.line import Line
from benchmarks.performance.workload import Workload
from tsr_lightning.policy.spec import LoRA


def take_part(line: Line, work: Workload, folder: Path) -> None:
    iterate(line, work, folder, LoRA())
