"""Which environments a run trains on: one, or a mixture of several, which may change with the epoch."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.boundary import Call, final
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.process import ProcessEnv, process_env
from tsr_lightning.errors import require
from tsr_lightning.rng import Key


@dataclass(frozen=True)
class MixtureEntry:
    """An environment of a mixture.

    Args:
        env: gymnasium id, or a dotted path such as `package.module:Env-v0`.
        env_kwargs: arguments of the environment.
        weight: its chance of each training instance, relative to those of the other entries. With 0 the policy is
            evaluated on it and never trained.
        name: what its own figures of evaluation are called; null for its id. Entries of one name share their figures.
        first_epoch: from which on it is trained on; before, its weight counts as 0. With `last_epoch` of another
            entry, difficulty grows (curriculum learning, https://doi.org/10.1145/1553374.1553380).
        last_epoch: up to and with which it is trained on; null: to the end of the run.
    """

    env: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    name: str | None = None
    first_epoch: int = 0
    last_epoch: int | None = None

    def __post_init__(self) -> None:
        remedy = "give a finite number, of 0 or above"
        require(0 <= self.weight < float("inf"), "data.env.weight", self.weight, remedy)
        require(self.first_epoch >= 0, "data.env.first_epoch", self.first_epoch, "give 0 or more")
        last, remedy = self.last_epoch, f"give null, or {self.first_epoch} (first_epoch) or more"
        require(last is None or last >= self.first_epoch, "data.env.last_epoch", last, remedy)

    def weight_in(self, epoch: int) -> float:
        """Its weight among the training instances of an epoch."""
        lasts = self.last_epoch is None or epoch <= self.last_epoch
        return self.weight if self.first_epoch <= epoch and lasts else 0.0

    @property
    def label(self) -> str:
        """The name of its figures."""
        return self.name or self.env

    def __str__(self) -> str:
        return f"{self.env}({', '.join(f'{name}={value!r}' for name, value in self.env_kwargs.items())})"

    def make(self) -> Branchable:
        return final(Call(self.env, "__init__"), partial(make_env, self.env, **self.env_kwargs))

    def make_process(self, timeout: float | None) -> ProcessEnv:
        """The same in a process of its own, whose steps may take so many seconds."""
        return final(Call(self.env, "__init__"), partial(process_env, self.env, self.env_kwargs, timeout))


def mixture_of(env: str | Sequence[MixtureEntry], env_kwargs: dict[str, Any] | None) -> list[MixtureEntry]:
    """The entries that `data.env` and `data.env_kwargs` mean; a single environment is a mixture of one."""
    if isinstance(env, str):
        return [MixtureEntry(env, env_kwargs or {})]
    require(len(env) > 0, "data.env", env, "name an environment, or list the entries of a mixture")
    require(not env_kwargs, "data.env_kwargs", env_kwargs, "data.env is a mixture: give each entry its own env_kwargs")
    weights = [entry.weight for entry in env]
    require(any(weights), "data.env.weight", weights, "give at least one entry a weight above 0, to train on")
    for epoch in sorted({0} | {entry.last_epoch + 1 for entry in env if entry.last_epoch is not None}):
        remedy = f"no entry with a weight is trained on in epoch {epoch}; let one begin earlier, or last longer"
        require(any(entry.weight_in(epoch) for entry in env), "data.env", _spans(env), remedy)
    return list(env)


def _spans(env: Sequence[MixtureEntry]) -> str:
    return ", ".join(
        f"{one.label}: {one.first_epoch} to {'the end' if one.last_epoch is None else one.last_epoch}" for one in env
    )


def choose(weights: Sequence[float], key: Key) -> int:
    """An index, drawn with chances proportional to the weights, of which one is above 0."""
    upper = list(accumulate(weights))
    return bisect(upper, key.uniform() * upper[-1], hi=len(upper) - 1)
