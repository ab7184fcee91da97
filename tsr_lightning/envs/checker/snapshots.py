"""Snapshots of an episode, from which it can be played again and again."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tsr_lightning.envs.checker.factory import BranchabilityError
from tsr_lightning.envs.checker.recording import Recorder, StateRecord, StepRecord
from tsr_lightning.rng import Key


@dataclass(frozen=True)
class Snapshot:
    """A state within an episode, and how the episode went on from it."""

    recorder: Recorder
    seed: int
    path: list[str]  # the responses before it
    state: Any
    copied: Any  # a deep copy of the state, which later steps cannot change
    record: StateRecord
    future: list[StepRecord]  # of the real episode, from here

    @property
    def responses(self) -> list[str]:
        """The responses of the real episode, from here."""
        return [step.response for step in self.future]

    def key(self, *parts: int | str) -> Key:
        return Key(self.seed).fold_in(len(self.path), *parts)

    def fail(self, name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({_where(self.recorder, self.seed, self.path)})")

    def restore(self, *keys: Key) -> None:
        self.recorder.restore(self.state, *keys)

    def branch(self, *keys: Key, state: Any = None, responses: Sequence[str] | None = None) -> list[StepRecord]:
        """Plays the same or given responses from this or a given state, reseeded with one key after another."""
        self.recorder.restore(self.state if state is None else state, *keys)
        return self.recorder.replay(self.responses if responses is None else responses)


def take_snapshot(recorder: Recorder, seed: int, depth: int) -> Snapshot | None:
    """A snapshot `depth` turns into an episode, which is then played on; None if it ends before."""
    recorder.env.reset(seed=seed)
    steps = recorder.play_randomly(Key(seed).fold_in("path"), depth)
    if steps and steps[-1].done:
        return None
    path = [step.response for step in steps]
    state = recorder.env.get_state()
    where = _where(recorder, seed, path)
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
    future = recorder.play_randomly(Key(seed).fold_in("future", depth))
    return Snapshot(recorder, seed, path, state, copied, record, future)


def _where(recorder: Recorder, seed: int, path: list[str]) -> str:
    return f"{recorder.factory.name}, seed {seed}, " + (f"after {path}" if path else "after the reset")
