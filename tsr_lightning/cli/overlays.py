"""Lays one --config over those before it.

A file that names a class begins with the defaults of that class. `data.env_kwargs` merge key by key, at every depth,
where jsonargparse would replace the whole dictionary, unless the file names another environment. A mapping as
`trainer.callbacks` changes arguments of the callbacks that are there.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, Namespace, get_loader

from tsr_lightning.cli.config_files import (
    CALLBACKS,
    CONFIG_FLAGS,
    ENV_KWARGS,
    extends,
    merged,
    named_classes,
    read_layers,
)
from tsr_lightning.errors import require

_ENV = "data.env"


class Overlay(ActionConfigFile):
    """The parser's `--config`."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        is_whole = not extends(values)
        for keys in read_layers(values):
            self._lay(parser, cfg, keys, values if is_whole else _dumped(keys))

    def _lay(self, parser: Any, cfg: Any, keys: Mapping[str, Any], values: Any) -> None:
        for key in named_classes(keys):
            if key in cfg:
                cfg.pop(key)
        if (changes := _callback_changes(keys)) is not None:
            callbacks = with_arguments(cfg.get(CALLBACKS) or [], changes)
            values = _dumped({**keys, "trainer": {**keys["trainer"], "callbacks": callbacks}})
        is_known = ENV_KWARGS in cfg
        env, kwargs = cfg.get(_ENV), cfg.pop(ENV_KWARGS)  # removed, so that only this file's arguments are there below
        super().__call__(parser, cfg, values)
        before = kwargs if env is None or cfg.get(_ENV) == env else None
        if ENV_KWARGS in cfg:
            cfg[ENV_KWARGS] = merged(before, cfg[ENV_KWARGS])
        elif is_known:
            cfg[ENV_KWARGS] = before


def _callback_changes(keys: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`trainer.callbacks` where it maps names to arguments; None for a list, for one callback and for null."""
    trainer = keys.get("trainer")
    given = trainer.get("callbacks") if isinstance(trainer, Mapping) else None
    return given if isinstance(given, Mapping) and "class_path" not in given else None


def with_arguments(callbacks: Sequence[Any], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The list of callbacks with other arguments of some.

    Args:
        callbacks: as the parser holds them.
        changes: arguments by the name of a class.

    Raises:
        ConfigError: no callback has that name.
    """
    plain = [callback.as_dict() if isinstance(callback, Namespace) else dict(callback) for callback in callbacks]
    by_name = {str(callback["class_path"]).rpartition(".")[2]: callback for callback in plain}
    for name, arguments in changes.items():
        remedy = f"name one of {', '.join(by_name)} with its arguments, or give the whole list"
        require(name in by_name and isinstance(arguments, Mapping), f"{CALLBACKS}.{name}", arguments, remedy)
        by_name[name]["init_args"] = {**(by_name[name].get("init_args") or {}), **arguments}
    return plain


def as_overlays(args: Sequence[str]) -> list[str]:
    """The arguments of a subcommand, with flags for `data`, `data.env`, `data.env_kwargs` and callbacks as --config.

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
        callback = re.fullmatch(rf"--{CALLBACKS}\.([A-Z]\w*)\.(\w+)", flag)
        if not keys and not callback and flag not in (*CONFIG_FLAGS, "--data", f"--{_ENV}", f"--{ENV_KWARGS}"):
            others.append(part)
            continue
        value = after if has_value else next(rest, None)
        if value is None:
            others.append(part)  # which the parser refuses
        elif flag in CONFIG_FLAGS:
            others += [flag, value]
            sections.append(([], []))
        elif flag == f"--{_ENV}":
            name += ["--config", f'{{"data": {{"env": {value if value.startswith("[") else json.dumps(value)}}}}}']
        elif callback:
            arguments = {callback[1]: {callback[2]: _loaded(value)}}
            others += ["--config", _dumped({"trainer": {"callbacks": arguments}})]
        elif keys:
            inner = _loaded(value)
            for key in reversed(keys):
                inner = {key: inner}
            others += ["--config", _dumped({"data": {"env_kwargs": inner}})]
        elif flag == f"--{ENV_KWARGS}" and _is_mapping(value):
            others += ["--config", f'{{"data": {{"env_kwargs": {value}}}}}']
        elif flag == "--data":
            others += ["--config", f'{{"data": {value if _is_mapping(value) else json.dumps(value)}}}']
        else:
            others += [flag, value]
    return [part for name, others in sections for part in (*name, *others)]


def _keys_within(flag: str) -> tuple[str, ...]:
    """`("difficulty", "options")` of `--data.env_kwargs.difficulty.options`; none of `--data.env_kwargs.difficulty`."""
    start, is_argument, keys = flag.partition(f"--{ENV_KWARGS}.")
    return tuple(keys.split(".")) if is_argument and not start and "." in keys else ()


def _loaded(value: str) -> Any:
    """A flag's value as jsonargparse reads those without a type."""
    try:
        return get_loader("yaml")(value)
    except yaml.YAMLError:
        return value


def _dumped(keys: Mapping[str, Any]) -> str:
    """Keys as YAML in one line, which has what JSON lacks: infinity, dates, and keys that are no texts."""
    return yaml.safe_dump(keys, default_flow_style=True, sort_keys=False, width=math.inf)


def _is_mapping(value: str) -> bool:
    """True if a value is a mapping or null in YAML, rather than the name of a file."""
    return re.fullmatch(r"null|\{.*\}", value.strip(), re.DOTALL) is not None
