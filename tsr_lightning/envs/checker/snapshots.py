"""Snapshots of an episode, from which it can be played again and again."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory
from tsr_lightning.envs.checker.recording import Recorder, StateRecord, StepRecord
from tsr_lightning.rng import Key


@dataclass(frozen=True)
class Snapshot:
    """A state within an episode, and how the episode went on from it."""

    factory: EnvFactory
    recorder: Recorder
    seed: int
    path: list[str]  # the responses before it
    state: Any
    copied: Any  # a deep copy of the state, which later steps cannot change
    record: StateRecord
    responses: list[str]  # of the real episode, from here
    future: list[StepRecord]  # of the real episode, from here

    def key(self, *parts: int | str) -> Key:
        return Key(self.seed).fold_in(len(self.path), *parts)

    def fail(self, name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({_where(self.factory, self.seed, self.path)})")

    def restore(self, key: Key | None = None) -> None:
        """Restores the state, with its own noise or that of a key."""
        self.recorder.env.set_state(self.state)
        if key is not None:
            self.recorder.env.reseed(key)

    def branch(self, *keys: Key, state: Any = None, responses: Sequence[str] | None = None) -> list[StepRecord]:
        """Plays the same or given responses from this or a given state, reseeded with one key after another."""
        self.recorder.env.set_state(self.state if state is None else state)
        for key in keys:
            self.recorder.env.reseed(key)
        return self.recorder.play(self.responses if responses is None else responses)


def take_snapshot(factory: EnvFactory, recorder: Recorder, seed: int, depth: int) -> Snapshot | None:
    """A snapshot `depth` turns into an episode, which is then played on; None if it ends before."""
    recorder.env.reset(seed=seed)
    path, steps = recorder.play_randomly(Key(seed).fold_in("path"), depth)
    if steps and steps[-1].done:
        return None
    state = recorder.env.get_state()
    where = _where(factory, seed, path)
    try:
        hash(state)
    except TypeError as error:
        raise BranchabilityError(f"state: {error}, so it is mutable: return an immutable one ({where})") from error
    try:
        copied = copy.deepcopy(state)
    except Exception as error:
        raise BranchabilityError(
            f"state: it cannot be copied ({error}), so it holds a live object: keep plain values in it ({where})"
        ) from error
    record = recorder.record_state()
    responses, future = recorder.play_randomly(Key(seed).fold_in("future", depth))
    return Snapshot(factory, recorder, seed, path, state, copied, record, responses, future)


def _where(factory: EnvFactory, seed: int, path: list[str]) -> str:
    return f"{factory.name}, seed {seed}, " + (f"after {path}" if path else "after the reset")
