"""Makes environments by name: a gymnasium id, or `package.module:Env-v0`, where the module registers the id."""

import difflib
import importlib
import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any, TypeGuard, Unpack, get_args, get_origin

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from tsr_lightning.envs.base import Branchable
from tsr_lightning.errors import ConfigError, EnvFault, RunError, describe, named

_REFUSED = re.compile(r"(?:(unexpected)|multiple values for) (?:keyword )?argument '(\w+)'")  # Python's own words
_OF_GYMNASIUM = (OrderEnforcing, PassiveEnvChecker)  # put around every environment, and not part of one


def make_env(id: str, **kwargs: Any) -> Branchable:
    """Makes an environment without gymnasium's wrappers, which cannot be restored.

    Args:
        id: a registered id, or `package.module:Env-v0` for an id that your own module registers.
        kwargs: arguments of the environment, in addition to those that it is registered with.
    """
    spec = find_spec(id)
    if problem := unrestorable(spec):
        raise ConfigError(f"data.env is {id!r}: it {problem}.")
    _check_arguments(spec, kwargs)
    try:
        made = gymnasium.make(spec, disable_env_checker=True, **kwargs)
    except TypeError as error:  # of a class that takes any name and hands them on
        refused = _REFUSED.search(str(error))
        if refused is None or refused[2] not in kwargs:
            raise
        problem = f"{spec.id!r} gives the argument {refused[2]!r} itself: leave it out."
        if refused[1]:
            problem = f"{spec.id!r} takes no argument {refused[2]!r}: correct its name, or leave it out."
        raise ConfigError(f"data.env_kwargs: {problem}") from error
    if problem := wrapped(made):
        raise ConfigError(f"data.env is {id!r}: it {problem}.")
    env: Any = made.unwrapped
    if not is_branchable(env):
        raise ConfigError(
            f"data.env is {id!r}: it cannot be branched, since it has no {', '.join(missing_methods(env))}; add them, "
            "or wrap the environment in tsr_lightning.envs.replay.Replayed where it is registered."
        )
    return env


def find_spec(id: str) -> EnvSpec:
    """The registered spec of an id. Imports its module if it names one."""
    module, _, name = id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"data.env is {id!r}: {_absent(module, error)}.") from error
        except (ConfigError, RunError, EnvFault, OSError):  # explained already, or may work at the next try
            raise
        except Exception as error:
            where = named(error) if isinstance(error, SyntaxError) else describe(error)  # which names its own line
            sentence = f"data.env is {id!r}: importing {module} raised {where}; fix the module."
            raise RunError(sentence, "".join(traceback.format_exception(error))) from error
    spec = registry.get(name)
    if not isinstance(spec, EnvSpec):
        raise ConfigError(f"data.env is {id!r}: it is not registered; {_remedy(name, module)}")
    return spec


def unrestorable(spec: EnvSpec) -> str:
    """Names what a spec keeps outside the environment's state, with the remedy; "" if nothing."""
    if spec.max_episode_steps is not None:
        return (
            f"is registered with max_episode_steps={spec.max_episode_steps}, a limit outside its state: register it "
            "without and count the turns in the environment, or wrap it in tsr_lightning.envs.replay.Replayed"
        )
    if spec.additional_wrappers:
        return "is registered with wrappers, whose state cannot be restored: move what they do into the environment"
    return ""


def wrapped(env: gymnasium.Env[Any, Any]) -> str:
    """Names a problem of an environment's wrappers, which search leaves out, with the remedy; "" if there is none."""
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, _OF_GYMNASIUM):
            return (
                f"is wrapped in {type(env).__name__}, whose state cannot be restored: move what it does into the "
                "environment, or wrap all of it in tsr_lightning.envs.replay.Replayed"
            )
        env = env.env
    return ""


def is_branchable(env: object) -> TypeGuard[Branchable]:
    """True if an environment has all of the contract; none of its properties is read, since some need an episode."""
    return not missing_methods(env)


def missing_methods(env: object) -> list[str]:
    """Members of the contract that an environment lacks."""
    return [name for name in vars(Branchable) if not name.startswith("_") and name not in dir(env)]


def _absent(module: str, error: ModuleNotFoundError) -> str:
    if error.name is None or not f"{module}.".startswith(f"{error.name}."):
        return f"{module} imports {error.name or error}, which is not there; install it, or correct the import"
    return f"there is no module {error.name!r}; install it or put its folder on PYTHONPATH"


def _remedy(name: str, module: str) -> str:
    if close := difflib.get_close_matches(name, registry, n=3):
        return f"did you mean {' or '.join(close)}?"
    if module:
        return f"let {module!r} call gymnasium.register(id={name!r}, ...)."
    ours = ", ".join(sorted(known for known in registry if known.startswith("tsr/")))
    return f"take one of {ours}, or give your own as package.module:Env-v0."


def _check_arguments(spec: EnvSpec, kwargs: dict[str, Any]) -> None:
    if spec.entry_point is None:
        raise ConfigError(f"data.env is {spec.id!r}: it is registered without an entry_point; register its class.")
    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
    arguments = _arguments(creator)
    if arguments is None:
        return
    for name in kwargs:
        if name not in arguments:
            close = difflib.get_close_matches(name, arguments, n=1)
            takes = f"it takes {', '.join(arguments) or 'none'}; --data.env_kwargs null drops what files give it."
            hint = f"did you mean {close[0]!r}?" if close else takes
            raise ConfigError(f"data.env_kwargs: {spec.id!r} takes no argument {name!r}: {hint}")
    given = {**spec.kwargs, **kwargs}
    for name, needed in arguments.items():
        if needed and name not in given:
            raise ConfigError(f"data.env_kwargs: {spec.id!r} needs the argument {name!r}: give it.")


def _arguments(creator: Callable[..., Any]) -> dict[str, bool] | None:
    """Each argument's name and whether it must be given, those of an unpacked TypedDict included; None: any name."""
    found: dict[str, bool] = {}
    for name, parameter in _signature(creator).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[name] = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        elif get_origin(parameter.annotation) is Unpack:
            [options] = get_args(parameter.annotation)
            found |= {option: option in options.__required_keys__ for option in options.__annotations__}
        else:
            return None
    return found


def _signature(creator: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature with its annotations as objects, also where a module keeps them as text."""
    try:
        return inspect.signature(creator, eval_str=True)
    except NameError:  # imported for the type checker alone
        return inspect.signature(creator)
