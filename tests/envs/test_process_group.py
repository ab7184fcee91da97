"""The children of an environment's process end with it, whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT

from tsr_lightning.envs.base import EnvDied, EnvTimedOut
from tsr_lightning.envs.process import ProcessEnv, process_env

WITH_CHILD = "tests.own_processes:WithChild-v0"
USER = """
import sys, time
from tsr_lightning.envs.process import process_env
env = process_env("tests.own_processes:WithChild-v0", {"folder": sys.argv[1]})
env.reset(seed=0)
print("reset", flush=True)
time.sleep(600)
"""
STEPPING = """
import sys
from tsr_lightning.envs.process import process_env
env = process_env("tests.own_processes:WithChild-v0", {"folder": sys.argv[1], "hangs": True})
env.reset(seed=0)
print("reset", flush=True)
env.step("r")
"""


def lives(child: int) -> bool:
    """False for one that has ended and is not waited for."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=False).stdout
    return status.strip()[:1] not in ("", "Z")


def ends(child: int) -> bool:
    """Waits for the end, at most for ten seconds."""
    deadline = time.monotonic() + 10
    while lives(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(child)


def time_out(env: ProcessEnv) -> None:
    with pytest.raises(EnvTimedOut):
        env.step("r")


def die(env: ProcessEnv) -> None:
    with pytest.raises(EnvDied, match="exit status 7"):
        env.step("r")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kwargs", "end"),
    [({}, ProcessEnv.close), ({"hangs": True}, time_out), ({"dies": True}, die)],
    ids=["close", "timeout", "death"],
)
def test_children_end_with_the_process(
    kwargs: dict[str, bool], end: Callable[[ProcessEnv], None], tmp_path: Path
) -> None:
    env = process_env(WITH_CHILD, {"folder": str(tmp_path), **kwargs}, timeout=0.3)
    env.reset(seed=0)
    child = int(next(tmp_path.iterdir()).name)
    assert lives(child)
    end(env)
    assert ends(child)


@pytest.mark.slow
@pytest.mark.parametrize("program", [USER, STEPPING], ids=["idle", "in a step"])
def test_children_end_with_a_run_that_is_killed(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "reset\n"
        child = int(next(tmp_path.iterdir()).name)
        assert lives(child)
        user.send_signal(signal.SIGKILL)
    assert ends(child)
