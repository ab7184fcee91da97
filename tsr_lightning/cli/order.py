"""Takes a command line apart, before the parser is there, and refuses files and flags in an order in which the later
silently replaces the earlier, and keys within a list."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tsr_lightning.cli.config_files import CALLBACKS, CONFIG_FLAGS, named_classes, read_config
from tsr_lightning.cli.defaults import DEFAULTS
from tsr_lightning.errors import ConfigError

_FIRST = {"data.env": "the environment", "model.policy.model": "the model"}  # the files that set these, in this order


@dataclass(frozen=True)
class File:
    """`--config NAME`."""

    name: str


@dataclass(frozen=True)
class Flag:
    """`--key value` or `--key=value`; the value is None where none is given."""

    key: str
    value: str | None

    def __str__(self) -> str:
        return f"--{self.key}" if self.value is None else f"--{self.key} {self.value}"


@dataclass(frozen=True)
class Word:
    """A word that stands where a flag is expected."""

    text: str


def parts(args: Sequence[str]) -> Iterator[File | Flag | Word]:
    """The parts of what follows a subcommand, in their order."""
    waiting = list(reversed(args))
    while waiting:
        given = waiting.pop()
        if not given.startswith("-"):
            yield Word(given)
            continue
        flag, has_value, value = given.partition("=")
        if not has_value and waiting and not waiting[-1].startswith("--"):
            has_value, value = "=", waiting.pop()
        if flag in CONFIG_FLAGS and has_value:
            yield File(value)
        else:
            yield Flag(flag.lstrip("-"), value if has_value else None)


_ABSENT = object()


def check_order(given: Sequence[File | Flag | Word]) -> None:
    """Reads the files of a command line, and raises the first ConfigError.

    A file that names `data.env` is a whole task, over which the others are laid: it comes before them, and before flags
    of the same keys. A file that names `model.policy.model` comes next. Where they replace nothing, they may come
    later. A file that names a class begins it anew, so a file that chooses a class within, as those of `credit/` do,
    comes after it.
    """
    merged: dict[str, Any] = _nested(DEFAULTS)
    before: list[tuple[str, dict[str, Any]]] = []
    flags: list[Flag] = []
    own_lists: set[str] = set()  # that a flag has set
    for part in given:
        match part:
            case File(name):
                keys = read_config(name)
                _check_drops_no_class(name, keys, before)
                _check_comes_first(name, keys, before)
                if _place(keys) == 0:
                    _check_precedes_flags(name, keys, flags)
                before.append((name, keys))
                merged = _merged(merged, keys)
            case Flag(key):
                flags.append(part)
                own_lists.add(key.removesuffix("+"))
                _check_list(part, merged, own_lists)
            case Word():
                pass


def _place(keys: Mapping[str, Any]) -> int:
    """0 of a task, 1 of a model, 2 of any other file."""
    chosen = (place for place, key in enumerate(_FIRST) if _at(keys, key) is not _ABSENT)
    return next(chosen, len(_FIRST))


def _check_comes_first(name: str, keys: Mapping[str, Any], before: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    for earlier, theirs in before:
        if _place(theirs) <= _place(keys):
            continue
        replaced = next((key for key, value in _leaves(theirs) if _replaces(_at(keys, key), value)), None)
        if replaced is not None:
            raise ConfigError(
                f"--config {earlier} comes before --config {name}, which names {[*_FIRST.values()][_place(keys)]} and "
                f"replaces its {replaced}: give --config {name} --config {earlier}"
            )


def _check_drops_no_class(name: str, keys: Mapping[str, Any], before: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    for earlier, theirs in before:
        if _place(theirs) == 0:
            continue
        for outer in named_classes(keys):
            for inner in named_classes(theirs):
                if inner.startswith(f"{outer}.") and _at(keys, inner) != _at(theirs, inner):
                    raise ConfigError(
                        f"--config {earlier} comes before --config {name}, which begins {outer} anew and drops its "
                        f"{inner}: give --config {name} --config {earlier}"
                    )


def _check_precedes_flags(name: str, keys: Mapping[str, Any], flags: Sequence[Flag]) -> None:
    for flag in flags:
        if flag.value is not None and _replaces(_at(keys, flag.key), _value(flag.value)):
            raise ConfigError(f"{flag} comes before --config {name}, which replaces it: give it after that file")


def _check_list(flag: Flag, merged: Mapping[str, Any], own_lists: set[str]) -> None:
    """jsonargparse would change the last element alone. A callback is named by its class."""
    if re.fullmatch(rf"{CALLBACKS}\.[A-Z]\w*\.\w+", flag.key):
        return
    names = flag.key.split(".")
    for depth in range(1, len(names)):
        key = ".".join(names[:depth])
        found = _at(merged, key)
        if isinstance(found, list) and len(found) > 1 and key not in own_lists:
            raise ConfigError(
                f"{flag} names no element of {key}, which is a list of {len(found)}: give the whole list, as "
                f"--{key} '[...]' or in a file, or one element more as --{key}+"
            )


def _nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in dotted.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return nested


def _leaves(keys: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in keys.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _at(keys: Any, dotted: str) -> Any:
    """What is set at a key or above it; _ABSENT where nothing is."""
    for name in dotted.split("."):
        if not isinstance(keys, Mapping):
            return keys
        if name not in keys:
            return _ABSENT
        keys = keys[name]
    return keys


def _replaces(after: Any, before: Any) -> bool:
    return after is not _ABSENT and after != before


def _merged(before: Any, after: Any) -> Any:
    if isinstance(before, list) and isinstance(after, Mapping):
        return before  # arguments of callbacks, by name
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    return {**before, **{key: _merged(before.get(key), value) for key, value in after.items()}}


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
