"""Checks that another process, with another hash salt, gives the same episodes."""

import dataclasses
import json
import os
import subprocess
import sys
from types import FunctionType

import gymnasium
from gymnasium.envs.registration import EnvSpec

from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory, resolve
from tsr_lightning.envs.checker.recording import Recorder

Trace = list[list[str]]  # by step, the reset first: observation, state_key, score


def check_in_subprocess(factory: EnvFactory, scripts: list[tuple[int, list[str]]]) -> list[str]:
    """Plays the same seeds and responses in another process. Returns what was skipped."""
    spec, problem = _serialised(factory.spec)
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
        timeout=300,  # seconds
        check=False,
    )
    if child.returncode:
        raise BranchabilityError(f"another process: {factory.name} cannot be played there:\n{child.stderr.strip()}")
    traces: list[Trace] = json.loads(child.stdout.splitlines()[-1])
    for (seed, responses), there in zip(scripts, traces, strict=True):
        here = _trace(factory, seed, responses)
        for turn, steps in enumerate(zip(here, there, strict=False)):  # another length follows another observation
            for what, mine, theirs in zip(("observation", "state_key", "score"), *steps, strict=True):
                if mine != theirs:
                    raise BranchabilityError(
                        f"another process: {what} is {theirs} there and {mine} here, so it depends on something like "
                        f"Python's salted hash() ({factory.name}, seed {seed}, responses {responses[:turn]})"
                    )
    return []


def _serialised(spec: EnvSpec | None) -> tuple[str, str]:
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
        return "", f"the spec cannot be written as JSON ({error})"


def _trace(factory: EnvFactory, seed: int, responses: list[str]) -> Trace:
    recorder = Recorder(factory.env, factory, len(responses), ())
    records = [recorder.reset(seed), *recorder.play(responses)]
    return [[record.observation, repr(record.after.state_key), repr(record.after.score)] for record in records]


def _trace_stdin() -> None:
    """The child's part: reads scripts from stdin, writes their traces to stdout."""
    request = json.load(sys.stdin)
    factory = resolve(gymnasium.make(EnvSpec.from_json(request["spec"]), disable_env_checker=True), {})
    print(json.dumps([_trace(factory, seed, responses) for seed, responses in request["scripts"]]))
