"""Sources of an environment's levels: a level for every seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.worlds.alfworld.effort import IMPOSSIBLE
from tsr_lightning.worlds.alfworld.games import GameFolder
from tsr_lightning.worlds.alfworld.generator import SceneSpec, generate
from tsr_lightning.worlds.alfworld.grammars import GRAMMARS, MOVE
from tsr_lightning.worlds.alfworld.level import Level
from tsr_lightning.worlds.panels import Panel


class Source(Protocol):
    """Levels by name."""

    def name(self, seed: int) -> str:
        """The name of the level that a seed means."""

    def level(self, name: str) -> Level:
        """A level; raises a ConfigError if it cannot be played."""

    def contents(self, names: Sequence[str]) -> dict[str, bytes]:
        """Returns the content of those of the levels that exist, for panels."""


@dataclass(frozen=True)
class Generated:
    """Generated scenes: a level's name is its seed."""

    spec: SceneSpec
    grammar: str | None

    def name(self, seed: int) -> str:
        return str(seed)

    def level(self, name: str) -> Level:
        return _generated(self.spec, self.grammar, name)

    def contents(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self.level(name).digest.encode() for name in names if name.isdecimal()}


@dataclass(frozen=True)
class Published:
    """The games of a folder; a seed means one of them, modulo their number."""

    folder: GameFolder

    def name(self, seed: int) -> str:
        return self.folder.names[seed % len(self.folder.names)]

    def level(self, name: str) -> Level:
        return self.folder.level(name)

    def contents(self, names: Sequence[str]) -> dict[str, bytes]:
        known = set(self.folder.names)
        return {name: self.folder.content(name) for name in names if name in known}


@dataclass(frozen=True)
class OfPanel:
    """The levels of a panel; a seed means one of them, modulo their number."""

    source: Source
    panel: Panel

    def name(self, seed: int) -> str:
        return self.panel.games[seed % len(self.panel.games)]

    def level(self, name: str) -> Level:
        return self.source.level(name)

    def contents(self, names: Sequence[str]) -> dict[str, bytes]:
        return self.source.contents(names)


@lru_cache(maxsize=64)
def open_source(games: str | Path | None, panel: Panel | None, spec: SceneSpec, grammar: str | None) -> Source:
    """The source of these arguments, the same object for the same ones: files are looked up, and panels checked, once.

    Args:
        games: a folder of published games; None for generated scenes.
        panel: the levels to play, of these games or scenes; None for all.
        spec: of generated scenes.
        grammar: a phrasing for all levels; None for each game's own, and "move" in generated scenes.
    """
    key = "ALFWorldEnv.games"
    phrasing = None if grammar is None else GRAMMARS[grammar]
    source: Source = Generated(spec, grammar) if games is None else Published(GameFolder(key, games, phrasing))
    if panel is None:
        return source
    panel.check("ALFWorldEnv.panel", source.contents(panel.games))
    return OfPanel(source, panel)


def check_playable(level: Level) -> None:
    """Raises a ConfigError if a level is won at its start, or cannot be won."""
    key, left = "ALFWorldEnv.games", level.goal.commands_left(level.scene, level.start)
    require(left < IMPOSSIBLE, key, level.name, f"{level.scene.task!r} cannot be reached in this game; leave it out.")
    require(not level.is_solved(level.start), key, level.name, "its goal holds from the start; leave the game out.")


@lru_cache(maxsize=512)
def _generated(spec: SceneSpec, grammar: str | None, name: str) -> Level:
    return generate(Key(0).fold_in("alfworld", int(name)), spec, MOVE if grammar is None else GRAMMARS[grammar], name)
