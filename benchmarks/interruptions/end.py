"""Reads the state, evaluations and files of an ended run, and finds faults in its status and output."""

import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tsr_lightning.training import checkpoints

STATUSES = {"kill": -signal.SIGKILL, "SIGTERM": 143, "Ctrl-C": 130}
# files that each process adds, or that name it
_OWN = re.compile(r"(run/events\.out\.tfevents\..*|wandb/.*|tmp/.*wandb.*|phase\.txt|output\d+\.txt|settings\.yaml)")


def state_of(folder: Path) -> dict[str, Any]:
    contents = checkpoints.load(folder / "run" / "checkpoints" / "last.ckpt")
    return {key: contents[key] for key in ("state_dict", "optimizer_states", "global_step")}


def evaluations_of(folder: Path) -> list[Any]:
    """All that was measured, without the times."""
    history = json.loads((folder / "run" / "evaluation.history.json").read_text(encoding="utf-8"))
    return [_timeless(one) for one in history["evaluations"]]


def _timeless(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _timeless(value) for key, value in node.items() if not key.endswith("seconds")}
    return [_timeless(value) for value in node] if isinstance(node, list) else node


def files_of(folder: Path) -> frozenset[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return frozenset(name for name in names if not _OWN.fullmatch(name))


def equal(one: Any, other: Any) -> bool:
    """True if both are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def faults_of_an_end(by: str, status: int, output: str, moment: str | None) -> list[str]:
    if moment is None or (status == 0 and "the run is in " in output):  # it ended by itself
        return []
    faults = [] if status == STATUSES[by] else [f"status {status} in {moment}, not {STATUSES[by]}: {output[-1000:]}"]
    if by != "kill" and f"stopped by {by}: " not in output:
        faults.append(f"no sentence in {moment}: {output[-1000:]}")
    if "Traceback" in output:
        faults.append(f"a traceback in {moment}: {output[-2000:]}")
    return faults


def repeated_evaluations(output: str) -> list[str]:
    """A process that goes on evaluates no policy that it has loaded."""
    begun = re.search(r"^epoch (\d+): rollout of", output, re.MULTILINE)
    evaluated = [int(epochs) for epochs in re.findall(r"^evaluation after (\d+) epochs", output, re.MULTILINE)]
    first = int(begun[1]) if begun else 0
    return [
        f"the policy after {epochs} epochs was evaluated again" for epochs in evaluated if first and epochs <= first
    ]
