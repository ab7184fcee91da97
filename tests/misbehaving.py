"""Another environment whose infrastructure fails, by a schedule that its arguments fix. A user's, named by module."""

import os
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.text import CHARSET
from tsr_lightning.rng import Key


class Misbehaving(gymnasium.Env[str, str]):
    """Each step raises, hangs or ends the process with some probability before the environment sees it.

    The draws are those of the calls of one object, so that a repetition may succeed.

    Args:
        env: what misbehaves, or its id.
        raises: probability.
        hangs: probability.
        dies: probability.
        after: steps of the object before which nothing fails.
        bad_resets: instances, modulo 100, whose reset always raises.
        folder: in which an empty file is left for every failure of a step.
        seed: of the draws.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  (gymnasium's)
    observation_space = gymnasium.spaces.Text(64, charset=CHARSET)
    action_space = gymnasium.spaces.Text(64, min_length=0, charset=CHARSET)

    def __init__(
        self,
        env: str | Branchable,
        raises: float = 0.0,
        hangs: float = 0.0,
        dies: float = 0.0,
        after: int = 0,
        bad_resets: Sequence[int] = (),
        folder: str | None = None,
        seed: int = 0,
    ) -> None:
        self.env = make_env(env) if isinstance(env, str) else env
        self.chances = {"raised": raises, "hung": hangs, "died": dies}
        self.after = after
        self.bad_resets = bad_resets
        self.folder = folder
        self.draws = Key(seed).fold_in(len(os.listdir(folder)) if folder else 0)  # a new process has other draws
        self.calls = 0

    @property
    def instructions(self) -> str:
        return self.env.instructions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if (seed or 0) % 100 in self.bad_resets:
            raise ConnectionError("no such page")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.calls += 1
        draw, start = self.draws.uniform(self.calls), 0.0
        for kind, chance in self.chances.items():
            if self.calls > self.after and start <= draw < start + chance:
                self._fail(kind)
            start += chance
        return self.env.step(action)

    def _fail(self, kind: str) -> None:
        if self.folder is not None:
            (Path(self.folder) / f"{kind}.{os.getpid()}.{id(self)}.{self.calls}").touch()
        if kind == "raised":
            raise ConnectionError("the page is gone")
        if kind == "hung":
            time.sleep(3600)
        os._exit(7)

    def get_state(self) -> Hashable:
        return self.env.get_state()

    def set_state(self, state: Any) -> None:
        self.env.set_state(state)

    def reseed(self, key: Key) -> None:
        self.env.reseed(key)

    def score(self) -> float:
        return self.env.score()

    def state_key(self) -> Hashable:
        return self.env.state_key()

    def remaining(self) -> int:
        return self.env.remaining()

    def legal_actions(self) -> list[str]:
        return ["a", "b"]


gymnasium.register("Misbehaving-v0", Misbehaving)
