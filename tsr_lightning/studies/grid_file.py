"""Reads the YAML of a grid. Knows what may stand in it, and no meaning of a configuration."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import LARGEST_SEED
from tsr_lightning.unique_keys import KeyTwice, load_unique


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file.

    Raises:
        ConfigError: there is no such file, or no mapping in it.
    """
    try:
        read = load_unique(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the grid {path} cannot be read: give the path of a YAML file") from error
    except KeyTwice as error:
        raise ConfigError(str(error)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"the grid is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ConfigError("the grid is no mapping of keys: give seeds, configs and arms or axes")
    return read


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuses a key that is not known, with the closest that is."""
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
            remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            raise ConfigError(f"{where}{key} is no key of a grid: {remedy}")


def mapping(given: Any, key: str) -> dict[str, Any]:
    """Returns `given` as a mapping with texts as keys; null is an empty one."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ConfigError(f"{key} is {given!r}: give a mapping")
    return {str(name): value for name, value in given.items()}


def texts(given: Any, key: str) -> tuple[str, ...]:
    """Returns `given` as a list of texts; null is an empty one."""
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{key} is {given!r}: give a list of names")
    return tuple(given)


def whole_numbers(given: Any, key: str) -> tuple[int, ...]:
    """Returns `given` as a list of different whole numbers, at least one."""
    is_list = isinstance(given, list) and len(given) > 0
    if not is_list or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in given):
        raise ConfigError(f"{key} is {given!r}: give a list of whole numbers, such as [1, 2, 3]")
    if len(set(given)) < len(given):
        raise ConfigError(f"{key} is {given!r}: give every number once")
    return tuple(given)


def seeds_of(given: Any, key: str) -> tuple[int, ...]:
    """Returns `given` as a list of different seeds, at least one."""
    found = whole_numbers(given, key)
    if too_large := [seed for seed in found if seed > LARGEST_SEED]:
        raise ConfigError(f"{key} has {too_large[0]}: give seeds from 0 to {LARGEST_SEED}")
    return found


def positive(given: Any, key: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"{key} is {given!r}: give a whole number of 1 or more")
    return given


def yes_or_no(given: Any, key: str) -> bool:
    if not isinstance(given, bool):
        raise ConfigError(f"{key} is {given!r}: give true or false")
    return given
