"""The environment to check, and how to make others like it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvCreator, EnvSpec

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.boundary import Call, final
from tsr_lightning.envs.closing import discard
from tsr_lightning.envs.make import find_spec, is_branchable, make_env, missing_methods, unrestorable, wrapped


class BranchabilityError(AssertionError):
    """An environment broke the contract: which property, and with which seed and responses."""


@dataclass(frozen=True)
class EnvFactory:
    name: str
    env: Branchable
    make: Callable[[], Branchable] | None  # another one alike
    spec: EnvSpec | None
    importable: tuple[str, dict[str, Any]] | None = None  # id and arguments, where the id names its module
    opened: list[Branchable] = field(default_factory=list)  # what was made here, and not given

    def another(self) -> Branchable | None:
        """Another environment alike; None if none can be made."""
        if self.make is None:
            return None
        self.opened.append(self.make())
        return self.opened[-1]

    def close(self) -> None:
        """Closes all environments that were made here."""
        while self.opened:
            discard(self.opened.pop())


def resolve(env: str | gymnasium.Env[str, str] | Callable[[], Any], kwargs: dict[str, Any]) -> EnvFactory:
    if isinstance(env, str):
        registered = find_spec(env)
        _check_spec(env, registered)
        spec = dataclasses.replace(registered, kwargs={**registered.kwargs, **kwargs})
        importable = (env, kwargs) if ":" in env else None
        make = partial(make_env, env, **kwargs)
        first = final(Call(env, "__init__"), make)
        return EnvFactory(env, first, make, spec, importable, [first])
    if isinstance(env, gymnasium.Env):
        own = env.spec
        _check_spec(str(env.unwrapped), own)
        another = None if own is None else lambda: _unwrapped(gymnasium.make(own, disable_env_checker=True))
        return EnvFactory(str(env.unwrapped), _unwrapped(env), another, own)
    made = env()
    name = type(made).__name__
    of_made = made.spec if isinstance(made, gymnasium.Env) else None
    _check_spec(name, of_made)
    spec = of_made or EnvSpec(id="checked/Env-v0", entry_point=cast(EnvCreator, env))  # for another process
    first = _unwrapped(made)
    return EnvFactory(name, first, lambda: _unwrapped(env()), spec, opened=[first])


def _unwrapped(env: Any) -> Branchable:
    """The environment without wrappers, as search uses it."""
    inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
    if isinstance(env, gymnasium.Env) and (problem := wrapped(env)):
        raise BranchabilityError(f"contract: {type(inner).__name__} {problem}")
    if not is_branchable(inner):
        raise BranchabilityError(f"contract: {type(inner).__name__} has no {', '.join(missing_methods(inner))}")
    return inner


def _check_spec(name: str, spec: EnvSpec | None) -> None:
    if spec is not None and (problem := unrestorable(spec)):
        raise BranchabilityError(f"contract: {name} {problem}")
