"""Environments whose processes have more than plain values: children of their own, states that cannot be pickled,
preparation. Users', named by module."""

import os
import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from tests.corridor import Corridor


class WithChild(Corridor):
    """It starts a child when it is made, as one that drives a browser does.

    Args:
        folder: gets a file named by the child's process id.
        hangs: whether a step hangs.
        dies: whether a step ends the process.
    """

    def __init__(self, folder: str, hangs: bool = False, dies: bool = False) -> None:
        super().__init__()
        self.hangs, self.dies = hangs, dies
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (Path(folder) / str(child.pid)).touch()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.dies:
            os._exit(7)
        while self.hangs:
            pass
        return super().step(action)


class LiveState(Corridor):
    """Its state holds a function that no other process can find."""

    def get_state(self) -> Hashable:
        return (*super().get_state(), lambda: None)  # type: ignore[misc]


class Prepares(Corridor):
    """`prepare` records the seeds, and the observation shows them."""

    prepared: tuple[int, ...] = ()

    def prepare(self, seeds: Sequence[int], /) -> None:
        self.prepared = tuple(seeds)

    @property
    def instructions(self) -> str:  # type: ignore[override]
        return f"prepared: {self.prepared}"


def make_prepares(folder: str) -> Prepares:
    """An entry point that is no class; it leaves the number of its process."""
    (Path(folder) / str(os.getpid())).touch()
    return Prepares()


def make_and_die() -> Prepares:
    os._exit(7)


for env in (WithChild, LiveState, Prepares):
    gymnasium.register(f"{env.__name__}-v0", env)
gymnasium.register("MadeByFunction-v0", make_prepares)
gymnasium.register("DiesWhenMade-v0", make_and_die)
