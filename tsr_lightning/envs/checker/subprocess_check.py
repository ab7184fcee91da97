"""Checks that another process, with another hash salt, gives the same episodes."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from tempfile import TemporaryFile
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from tsr_lightning.envs.base import HasOracle
from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory, resolve
from tsr_lightning.envs.checker.recording import Recorder, StepRecord
from tsr_lightning.envs.process_group import end_group

Trace = list[dict[str, str]]  # by step, the reset first: what it shows, by name

_TIMEOUT = 300.0  # seconds
_EXCERPT = 300  # characters of a value in a sentence


def check_in_subprocess(factory: EnvFactory, scripts: list[tuple[int, list[str]]]) -> list[str]:
    """Plays the same seeds and responses in another process, the last seed first. Returns what was skipped."""
    made, problem = _serialised(factory)
    if problem:
        return [f"another process: {problem}"]
    traces = _play_elsewhere(factory, json.dumps({"made": made, "scripts": scripts[::-1]}))[::-1]
    for (seed, responses), there in zip(scripts, traces, strict=True):
        here = _trace(factory, seed, responses)
        for turn, (mine, theirs) in enumerate(zip(here, there, strict=False)):  # another length follows another end
            for what, value in mine.items():
                if value != theirs[what]:
                    raise BranchabilityError(
                        f"another process: {what} is {theirs[what][:_EXCERPT]} there and {value[:_EXCERPT]} here, so "
                        "it depends on something like Python's salted hash(), the order of a set, or the seeds played "
                        f"before ({factory.name}, seed {seed}, responses {responses[:turn]})"
                    )
    return []


def _play_elsewhere(factory: EnvFactory, request: str) -> list[Trace]:
    """Asks another process, through files: a pipe stays open while what the environment started lives."""
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with TemporaryFile() as asked, TemporaryFile() as answered, TemporaryFile() as errors:
        asked.write(request.encode())
        asked.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import _trace_stdin; _trace_stdin()"],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=asked,
            stdout=answered,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = child.wait(_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise BranchabilityError(
                f"another process: {factory.name} did not play there within {_TIMEOUT:.0f} s what it played here"
            ) from error
        finally:
            end_group(child)
        for file in (answered, errors):
            file.seek(0)
        if status:
            problem = errors.read().decode(errors="replace").strip()
            raise BranchabilityError(f"another process: {factory.name} cannot be played there:\n{problem}")
        traces: list[Trace] = json.loads(answered.read().splitlines()[-1])
        return traces


def _serialised(factory: EnvFactory) -> tuple[str, str]:
    """JSON from which another process can make the environment: its id and arguments where the id names the module that
    registers it, or else its spec; or "" and why not."""
    if factory.importable is not None:
        try:
            return json.dumps(factory.importable), ""
        except TypeError as error:
            return "", f"its arguments cannot be written as JSON ({error})"
    spec = factory.spec
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
    env, advised = factory.env, list[dict[str, Any]]()

    def with_advice() -> Iterator[str]:
        for response in responses:
            advised.append({"the oracle's response": env.oracle()} if isinstance(env, HasOracle) else {})
            yield response

    begun, played = recorder.reset(seed), recorder.play(with_advice())
    return [_shown(begun, {}), *map(_shown, played, advised)]


def _shown(record: StepRecord, advice: dict[str, Any]) -> dict[str, str]:
    shown = advice | {name: value for name, value in vars(record).items() if name not in ("response", "after")}
    return {name: canonical(value) for name, value in (shown | vars(record.after)).items()}


def _trace_stdin() -> None:
    """The child's part: reads scripts from stdin, writes their traces to stdout."""
    request = json.load(sys.stdin)
    match json.loads(request["made"]):
        case [str(id), dict(kwargs)]:
            factory = resolve(id, kwargs)
        case _:
            spec = EnvSpec.from_json(request["made"])
            factory = resolve(partial(gymnasium.make, spec, disable_env_checker=True), {})
    with closing(factory):
        print(json.dumps([_trace(factory, seed, responses) for seed, responses in request["scripts"]]))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def canonical(value: Any) -> str:
    """A value's repr, in which dictionaries and sets are sorted and addresses of objects left out."""
    match value:
        case dict():
            pairs = sorted(f"{canonical(name)}: {canonical(part)}" for name, part in value.items())
            return f"{{{', '.join(pairs)}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(canonical, value)))}}}"
        case list():
            return f"[{_listed(value)}]"
        case tuple():
            return f"({_listed(value)})"
        case np.ndarray():
            return f"array({canonical(value.tolist())})"
        case _:
            return _ADDRESS.sub("", repr(value))


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(canonical, values))
