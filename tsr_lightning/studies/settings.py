"""Flattens the settings of a run, so that two can be compared key by key."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Settings = dict[str, Any]  # dotted key -> a plain value

# What differs between the runs of an arm, and what a study sets by itself.
_NOT_COMPARED = (
    "seed_everything",
    "ckpt_path",
    "config",
    "trainer.logger",
    "trainer.default_root_dir",
    "trainer.run_folder",
)
_SHOWN = 3
_ABSENT = "not set"


def flat_settings(resolved: Mapping[str, Any]) -> Settings:
    """Returns the resolved configuration of a run by dotted key; an entry of a list by its position. An empty mapping
    or list is a value."""
    return {key: value for key, value in _leaves(dict(resolved), "") if not is_under(key, _NOT_COMPARED)}


def is_under(key: str, names: Collection[str]) -> bool:
    """True if a dotted key is one of the names, or lies under one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _leaves(node: Any, above: str) -> list[tuple[str, Any]]:
    children: list[tuple[str, Any]]
    if isinstance(node, Mapping) and node:
        children = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, list) and any(isinstance(entry, Mapping) for entry in node):
        children = [(str(place), value) for place, value in enumerate(node)]
    else:
        return [(above, node)]
    return [leaf for key, value in children for leaf in _leaves(value, f"{above}.{key}" if above else key)]


def differing_keys(several: Sequence[Mapping[str, Any]]) -> str:
    """Returns the keys that differ between any of them, in words; empty where nothing does."""
    keys = sorted({key for one in several for key in one})
    return _listed([key for key in keys if len({_text(one, key) for one in several}) > 1])


def differences(before: Settings, now: Settings) -> str:
    """Describes what differs, in words; empty where nothing does."""
    changes = [
        f"{key} was {before.get(key, _ABSENT)} and is {now.get(key, _ABSENT)}"
        for key in sorted({*before, *now})
        if _text(before, key) != _text(now, key)
    ]
    return _listed(changes)


def _text(settings: Mapping[str, Any], key: str) -> str:
    """A value in JSON: to a Trainer 1 is one batch and 1.0 is all of them, and in Python the two are equal."""
    return json.dumps(settings.get(key, _ABSENT), sort_keys=True)


def _listed(parts: Sequence[str]) -> str:
    more = [f"{len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
    return ", ".join([*parts[:_SHOWN], *more])
