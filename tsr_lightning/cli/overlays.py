"""Merges `data.env_kwargs` key by key, where jsonargparse would replace the whole dictionary.

A later --config that names another environment starts without arguments: the earlier ones were the other environment's.
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
        env, kwargs = cfg.get(_ENV), cfg.pop(_KWARGS)  # removed, so that only this file's arguments are there below
        super().__call__(parser, cfg, values, option_string)
        before = kwargs if env is None or cfg.get(_ENV) == env else None
        if _KWARGS in cfg:
            cfg[_KWARGS] = merged(before, cfg[_KWARGS])
        elif is_known:
            cfg[_KWARGS] = before


def merged(before: Mapping[str, Any] | None, after: Any) -> Any:
    """Both, the later over the earlier; null removes all. The parser refuses what is no mapping."""
    return {**(before or {}), **after} if isinstance(after, Mapping) else after


def as_overlays(args: Sequence[str]) -> list[str]:
    """The arguments of a subcommand, with flags for `data`, `data.env` or all of `data.env_kwargs` as --config.

    The order of flags between two --config means nothing, so there the environment comes before its arguments.
    """
    sections: list[tuple[list[str], list[str]]] = [([], [])]  # (the environment's name, everything else)
    rest = iter(args)
    for part in rest:
        flag, has_value, after = part.partition("=")
        name, others = sections[-1]
        if flag not in (*_CONFIG, "--data", f"--{_ENV}", f"--{_KWARGS}"):
            others.append(part)
            continue
        value = after if has_value else next(rest, None)
        if value is None:
            others.append(part)  # which the parser refuses
        elif flag in _CONFIG:
            others += [flag, value]
            sections.append(([], []))
        elif flag == f"--{_ENV}":
            name += ["--config", f'{{"data": {{"env": {value if value.startswith("[") else json.dumps(value)}}}}}']
        elif flag == f"--{_KWARGS}" and _is_mapping(value):
            others += ["--config", f'{{"data": {{"env_kwargs": {value}}}}}']
        elif flag == "--data":
            others += ["--config", f'{{"data": {value if _is_mapping(value) else json.dumps(value)}}}']
        else:
            others += [flag, value]
    return [part for name, others in sections for part in (*name, *others)]


def _is_mapping(value: str) -> bool:
    """Whether it is a mapping or null in YAML, rather than the name of a file."""
    return re.fullmatch(r"null|\{.*\}", value.strip(), re.DOTALL) is not None
