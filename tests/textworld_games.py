"""Games of TextWorld for tests: one cache for all test processes, and a few arguments of every kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tsr_lightning.worlds.textworld.env import TextWorldEnv

KINDS: Mapping[str, dict[str, Any]] = {
    "w2-o3-q4": {},
    "w4-o6-q8": {"world_size": 4, "objects": 6, "quest_length": 8, "max_turns": 24},
    "simple": {"kind": "simple", "reward": "dense", "max_turns": 24},
    "coin_collector": {"kind": "coin_collector", "level": 5},
    "treasure_hunter": {"kind": "treasure_hunter", "level": 12, "max_turns": 24},
}


def game_cache(factory: pytest.TempPathFactory) -> Path:
    """A folder for generated games, the same for all workers of a test run."""
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # of pytest-xdist's workers
    return shared / "textworld-games"


def make(cache: Path, kind: str = "w2-o3-q4", **settings: Any) -> TextWorldEnv:
    return TextWorldEnv(cache=cache, **{**KINDS[kind], **settings})
