"""Reads the Trainer's keys as Lightning does, before there is a Trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl


def callbacks_of(trainer: Mapping[str, Any]) -> Sequence[pl.Callback]:
    """The callbacks that the Trainer's arguments name: a list, one, or none."""
    given = trainer.get("callbacks") or []
    return [given] if isinstance(given, pl.Callback) else given
