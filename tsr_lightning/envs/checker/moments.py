"""An episode, stopped at a moment, from which it can be played on again and again."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tsr_lightning.envs.checker.factory import BranchabilityError, Source
from tsr_lightning.envs.checker.watching import Seen, Standing, StepExecutor
from tsr_lightning.rng import Key


@dataclass(frozen=True)
class Moment:
    """An episode, stopped, and what came of it when it was played on."""

    source: Source
    stage: StepExecutor
    seed: int
    path: list[str]  # the answers that lead here
    state: Any
    copied: Any  # a deep copy of the state, which later steps cannot reach
    standing: Standing
    actions: list[str]  # of the real episode, from here
    future: list[Seen]  # of the real episode, from here

    def key(self, *parts: int | str) -> Key:
        return Key(self.seed).fold_in(len(self.path), *parts)

    def fail(self, name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({_where(self.source, self.seed, self.path)})")

    def back(self, key: Key | None = None) -> None:
        """To this moment, with its own noise or that of a key."""
        self.stage.env.set_state(self.state)
        if key is not None:
            self.stage.env.reseed(key)

    def branch(self, *keys: Key, state: Any = None, actions: Sequence[str] | None = None) -> list[Seen]:
        """The same answers once more, or others, reseeded with one key after another; from here, or a given state."""
        self.stage.env.set_state(self.state if state is None else state)
        for key in keys:
            self.stage.env.reseed(key)
        return self.stage.play(self.actions if actions is None else actions)


def stop(source: Source, stage: StepExecutor, seed: int, depth: int) -> Moment | None:
    """The moment `depth` turns into an episode, which is then played on; None if it ends before."""
    stage.env.reset(seed=seed)
    path, seen = stage.wander(Key(seed).fold_in("path"), depth)
    if seen and seen[-1].done:
        return None
    state = stage.env.get_state()
    where = _where(source, seed, path)
    try:
        hash(state)
    except TypeError as error:
        raise BranchabilityError(f"state: {error}, so it could be changed: return what cannot ({where})") from error
    try:
        copied = copy.deepcopy(state)
    except Exception as error:
        raise BranchabilityError(
            f"state: it cannot be copied ({error}), so it holds something that lives on: keep plain values in it "
            f"({where})"
        ) from error
    standing = stage.stand()
    actions, future = stage.wander(Key(seed).fold_in("future", depth))
    return Moment(source, stage, seed, path, state, copied, standing, actions, future)


def _where(source: Source, seed: int, path: list[str]) -> str:
    return f"{source.name}, seed {seed}, " + (f"after {path}" if path else "after the reset")
