"""How what is said of the environment is laid over what was said before, where the parser would replace it.

`data.env_kwargs` is a dictionary of any keys, which jsonargparse replaces as a whole. Here an overlay states some keys
and leaves the others, as it does everywhere else; one that names another environment starts without any, since they
were the arguments of the one before.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ActionConfigFile

_ENV, _KWARGS = "data.env", "data.env_kwargs"
_CONFIG = ("--config", "-c")


class Overlay(ActionConfigFile):
    """The parser's `--config`."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        is_known = _KWARGS in cfg
        env, kwargs = cfg.get(_ENV), cfg.pop(_KWARGS)  # taken away, so that what comes is what the overlay states
        super().__call__(parser, cfg, values, option_string)
        before = kwargs if env is None or cfg.get(_ENV) == env else None
        if _KWARGS in cfg:
            cfg[_KWARGS] = laid_over(before, cfg[_KWARGS])
        elif is_known:
            cfg[_KWARGS] = before


def laid_over(before: Mapping[str, Any] | None, stated: Any) -> Any:
    """The arguments that are left of both; null takes all away. What is no mapping is the parser's to refuse."""
    return {**(before or {}), **stated} if isinstance(stated, Mapping) else stated


def as_overlays(args: Sequence[str]) -> list[str]:
    """The arguments of a subcommand, with flags that name the environment, or give all its arguments, as overlays.

    Between two `--config` the order of flags says nothing, so there the environment comes before its arguments.
    """
    stretches: list[tuple[list[str], list[str]]] = [([], [])]  # what is said of the environment, and all else
    rest = list(args)
    while rest:
        flag, has_value, value = rest[0].partition("=")
        taken = [rest.pop(0)]
        if flag in ("--data", f"--{_ENV}", f"--{_KWARGS}", *_CONFIG) and not has_value:
            if not rest:
                stretches[-1][1].append(flag)  # without its value, of which the parser complains
                break
            value = rest.pop(0)
            taken.append(value)
        named, others = stretches[-1]
        if flag in _CONFIG:
            stretches.append(([], []))
            others += taken
        elif flag == f"--{_ENV}":
            named += ["--config", json.dumps({"data": {"env": value}})]
        elif flag == f"--{_KWARGS}" and _is_plain(value):
            others += ["--config", f'{{"data": {{"env_kwargs": {value}}}}}']
        elif flag == "--data":
            others += ["--config", f'{{"data": {value if _is_plain(value) else json.dumps(value)}}}']
        else:
            others += taken
    return [part for named, others in stretches for part in (*named, *others)]


def _is_plain(value: str) -> bool:
    """Whether it is a mapping or nothing, in YAML, and no file's name."""
    return re.fullmatch(r"null|\{.*\}", value.strip(), re.DOTALL) is not None
