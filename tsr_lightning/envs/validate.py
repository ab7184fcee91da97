"""Checks that several environments make of their arguments. `key` is `ClassName.argument`."""

import importlib
from collections.abc import Sequence
from typing import Any

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key


def whole(key: str, value: object, at_least: int = 1) -> None:
    """Raises a ConfigError unless `value` is an integer of at least `at_least`."""
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= at_least
    require(valid, key, value, f"give a whole number of at least {at_least}.")


def one_of(key: str, value: object, known: Sequence[str]) -> None:
    """Raises a ConfigError unless `value` is one of `known`."""
    require(value in known, key, value, f"take one of {', '.join(known)}.")


def fraction(key: str, value: object) -> None:
    """Raises a ConfigError unless `value` lies in [0, 1]."""
    require(isinstance(value, int | float) and 0 <= value <= 1, key, value, "give a number from 0 to 1.")


def single_action(key: str, value: object) -> None:
    """Raises a ConfigError unless `value`, the actions per turn of a task whose turns play one, is 1."""
    require(value == 1, key, value, "a turn plays one action, so leave it out; max_turns sets how many an episode has.")


def noise_has_key(noise: float, key: Key | None) -> None:
    """Raises a ConfigError if an oracle's `noise` has no key to be drawn from."""
    require(not noise or key is not None, "noise", noise, "give a key to draw it from.")


def imported(key: str, given: Any) -> Any:
    """What a dotted path names; anything else as it is. Raises a ConfigError where there is no such thing."""
    if not isinstance(given, str):
        return given
    module, _, name = given.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key} is {given!r}: there is no such class or function ({error}); give module.name"
        ) from error
