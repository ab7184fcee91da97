"""The same episodes in another process, where Python salts its hashes otherwise."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from types import FunctionType

from gymnasium.envs.registration import EnvSpec

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.checker.factory import BranchabilityError, Source, made_anew

CHILD_SECONDS = 300

Trace = list[list[str]]  # by step, the reset first: observation, state_key, score


def _trace(env: Branchable, seed: int, actions: Iterable[str]) -> Trace:
    observation, _ = env.reset(seed=seed)
    trace = [[observation, repr(env.state_key()), repr(env.score())]]
    for action in actions:
        observation, _, terminated, truncated, _ = env.step(action)
        trace.append([observation, repr(env.state_key()), repr(env.score())])
        if terminated or truncated:
            break
    return trace


def check_elsewhere(source: Source, scripts: list[tuple[int, list[str]]]) -> list[str]:
    """The same seeds and answers where Python salts its hashes otherwise. Returns what was skipped."""
    spec, problem = _portable(source.spec)
    if problem:
        return [f"another process: {problem}"]
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    child = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import _trace_stdin; _trace_stdin()"],
        input=json.dumps({"spec": spec, "scripts": scripts}),
        env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=CHILD_SECONDS,
        check=False,
    )
    if child.returncode:
        raise BranchabilityError(f"another process: {source.name} cannot be played there:\n{child.stderr.strip()}")
    traces: list[Trace] = json.loads(child.stdout.splitlines()[-1])
    for (seed, actions), there in zip(scripts, traces, strict=True):
        here = _trace(source.env, seed, actions)
        for turn, steps in enumerate(zip(here, there, strict=False)):  # another length follows another observation
            for what, mine, theirs in zip(("observation", "state_key", "score"), *steps, strict=True):
                if mine != theirs:
                    raise BranchabilityError(
                        f"another process: {what} is {theirs} there and {mine} here, so it hangs on something like "
                        f"Python's salted hash() ({source.name}, seed {seed}, actions {actions[:turn]})"
                    )
    return []


def _portable(spec: EnvSpec | None) -> tuple[str, str]:
    """A spec as JSON, from which another process can make the environment; or "" and why not."""
    if spec is None:
        return "", "the environment has no spec"
    creator = spec.entry_point
    if callable(creator):
        if not isinstance(creator, type | FunctionType):
            return "", f"{creator} has no name to import it by"
        if "." in creator.__qualname__ or "<" in creator.__qualname__ or creator.__module__ == "__main__":
            return "", f"{creator.__qualname__} cannot be imported"
        spec = dataclasses.replace(spec, entry_point=f"{creator.__module__}:{creator.__qualname__}")
    try:
        return spec.to_json(), ""
    except (TypeError, ValueError) as error:
        return "", f"the spec is no JSON ({error})"


def _trace_stdin() -> None:
    """The child's part: traces of the scripts on stdin, on stdout."""
    order = json.load(sys.stdin)
    env = made_anew(EnvSpec.from_json(order["spec"]))
    print(json.dumps([_trace(env, seed, actions) for seed, actions in order["scripts"]]))
