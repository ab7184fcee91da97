"""Merges `data.env_kwargs` key by key, at every depth, where jsonargparse would replace the whole dictionary.

A later --config that names another environment starts without arguments: the earlier ones were the other environment's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, get_loader

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


def merged(before: Any, after: Any) -> Any:
    """Mappings key by key at every depth, the later over the earlier; null and other values replace what was there."""
    if not isinstance(after, Mapping):
        return after  # the parser refuses arguments that are no mapping
    known = before if isinstance(before, Mapping) else {}
    return {**known, **{key: merged(known.get(key), value) for key, value in after.items()}}


def as_overlays(args: Sequence[str]) -> list[str]:
    """The arguments of a subcommand, with flags for `data`, `data.env` and `data.env_kwargs` as --config.

    Of the flags for one argument of the environment those for a key within it, which jsonargparse would let replace
    the argument.

    The order of flags between two --config means nothing, so there the environment comes before its arguments.
    """
    sections: list[tuple[list[str], list[str]]] = [([], [])]  # (the environment's name, everything else)
    rest = iter(args)
    for part in rest:
        flag, has_value, after = part.partition("=")
        name, others = sections[-1]
        keys = _keys_within(flag)
        if not keys and flag not in (*_CONFIG, "--data", f"--{_ENV}", f"--{_KWARGS}"):
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
        elif keys:
            inner = _loaded(value)
            for key in reversed(keys):
                inner = {key: inner}
            others += ["--config", json.dumps({"data": {"env_kwargs": inner}})]
        elif flag == f"--{_KWARGS}" and _is_mapping(value):
            others += ["--config", f'{{"data": {{"env_kwargs": {value}}}}}']
        elif flag == "--data":
            others += ["--config", f'{{"data": {value if _is_mapping(value) else json.dumps(value)}}}']
        else:
            others += [flag, value]
    return [part for name, others in sections for part in (*name, *others)]


def _keys_within(flag: str) -> tuple[str, ...]:
    """`("difficulty", "options")` of `--data.env_kwargs.difficulty.options`; none of `--data.env_kwargs.difficulty`."""
    start, is_argument, keys = flag.partition(f"--{_KWARGS}.")
    return tuple(keys.split(".")) if is_argument and not start and "." in keys else ()


def _loaded(value: str) -> Any:
    """A flag's value as jsonargparse reads those without a type."""
    try:
        return get_loader("yaml")(value)
    except yaml.YAMLError:
        return value


def _is_mapping(value: str) -> bool:
    """Whether it is a mapping or null in YAML, rather than the name of a file."""
    return re.fullmatch(r"null|\{.*\}", value.strip(), re.DOTALL) is not None
