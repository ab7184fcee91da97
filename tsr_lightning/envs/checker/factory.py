"""The environment that is checked, and how to make others like it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvCreator, EnvSpec

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.make import find_spec, make_env, missing_methods, outside_limits


class BranchabilityError(AssertionError):
    """An environment broke the contract: which property, and with which seed and answers."""


@dataclass(frozen=True)
class Source:
    name: str
    env: Branchable
    make: Callable[[], Branchable] | None  # another one alike
    spec: EnvSpec | None


def find_source(env: str | gymnasium.Env[str, str] | Callable[[], Any], kwargs: dict[str, Any]) -> Source:
    if isinstance(env, str):
        found = find_spec(env)
        _demand_no_limits(env, found)
        asked = dataclasses.replace(found, kwargs={**found.kwargs, **kwargs})
        return Source(env, make_env(env, **kwargs), lambda: make_env(env, **kwargs), asked)
    if isinstance(env, gymnasium.Env):
        own = env.spec
        _demand_no_limits(str(env.unwrapped), own)
        return Source(str(env.unwrapped), _bare(env), None if own is None else lambda: made_anew(own), own)
    made = env()
    name = type(made).__name__
    of_made = made.spec if isinstance(made, gymnasium.Env) else None
    _demand_no_limits(name, of_made)
    spec = of_made or EnvSpec(id="checked/Env-v0", entry_point=cast(EnvCreator, env))  # for another process
    return Source(name, _bare(made), lambda: _bare(env()), spec)


def _bare(env: Any) -> Branchable:
    """The environment without wrappers, as search uses it."""
    bare = env.unwrapped if isinstance(env, gymnasium.Env) else env
    if not isinstance(bare, Branchable):
        raise BranchabilityError(f"contract: {type(bare).__name__} has no {', '.join(missing_methods(bare))}")
    return bare


def made_anew(spec: EnvSpec) -> Branchable:
    return _bare(gymnasium.make(spec, disable_env_checker=True))


def _demand_no_limits(name: str, spec: EnvSpec | None) -> None:
    if spec is not None and (problem := outside_limits(spec)):
        raise BranchabilityError(f"contract: {name} {problem}")
