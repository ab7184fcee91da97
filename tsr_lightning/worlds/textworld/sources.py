"""Sources of games: generated ones in a cache, or a folder of games."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.worlds.panels import Panel
from tsr_lightning.worlds.textworld.kinds import GameKind
from tsr_lightning.worlds.textworld.orders import Order
from tsr_lightning.worlds.textworld.pool import GameError, maker_pool
from tsr_lightning.worlds.textworld.waiting import wait_for

MAKER = 1  # raise it when the same arguments begin to mean other games


class GameSource(ABC):
    """Games by seed."""

    @abstractmethod
    def path(self, seed: int) -> Path:
        """The .z8 file of the game that a seed names; it is there when this returns.

        Raises:
            ConfigError: if there is no such game.
        """

    @abstractmethod
    def prepare(self, seeds: Iterable[int]) -> None:
        """Announces seeds, so that their games are made in the background."""

    @abstractmethod
    def named(self, names: Sequence[str]) -> dict[str, Path]:
        """The .z8 files of these games that there are, for panels."""


@dataclass(frozen=True)
class GameFiles(GameSource):
    """Games that are there; a seed picks one, modulo their number."""

    games: tuple[Path, ...]

    def path(self, seed: int) -> Path:
        return self.games[seed % len(self.games)]

    def prepare(self, seeds: Iterable[int]) -> None:
        pass  # they are there

    def named(self, names: Sequence[str]) -> dict[str, Path]:
        """Finds games by their files' names without ending."""
        known = {path.stem: path for path in self.games}
        return {name: known[name] for name in names if name in known}


@dataclass(frozen=True)
class GeneratedGames(GameSource):
    """Games that are generated when they are first wanted, and kept.

    Args:
        kind: what they are generated from.
        version: of textworld.
        cache: the folder to keep them in.
        count: different games; a seed picks one, modulo this. None: every seed has its own.
    """

    kind: GameKind
    version: str
    cache: Path
    count: int | None = None

    def path(self, seed: int) -> Path:
        order = self._order(seed)
        path = Path(order["path"])
        if not path.exists():
            [future] = maker_pool().order([order], urgent=True)
            try:
                wait_for(future, maker_pool())
            except GameError as error:
                given = ", ".join(f"{name} {value}" for name, value in self.kind.settings().items())
                remedy = f"TextWorld makes no game of {given} from seed {order['seed']} ({error}); change them."
                raise ConfigError(f"TextWorldEnv.kind is {self.kind.kind!r}: {remedy}") from None
        return path

    def prepare(self, seeds: Iterable[int]) -> None:
        orders = {order["path"]: order for order in map(self._order, seeds)}
        missing = [order for path, order in orders.items() if not Path(path).exists()]
        if missing:
            maker_pool().order(missing)

    def named(self, names: Sequence[str]) -> dict[str, Path]:
        """Finds games by their seeds, whatever the count, and makes those that are missing."""
        seeds = {name: int(name) for name in names if name.isdecimal()}
        every_seed = replace(self, count=None)
        every_seed.prepare(seeds.values())
        return {name: every_seed.path(seed) for name, seed in seeds.items()}

    def _order(self, seed: int) -> Order:
        seed = seed if self.count is None else seed % self.count
        settings = self.kind.settings()
        made_of = json.dumps([settings, seed, self.version, MAKER], sort_keys=True)
        name = hashlib.blake2b(made_of.encode(), digest_size=12).hexdigest()
        return Order(settings=settings, seed=seed, path=str(self.cache / self.kind.kind / f"{name}.z8"))


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/tsr_lightning/textworld`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsr_lightning" / "textworld"


@lru_cache(maxsize=16)
def open_panel(source: GameSource, panel: Panel) -> GameSource:
    """The games of a panel, in its order, after a check that they are what they were when it was made.

    Raises:
        ConfigError: if they are not, or some are missing.
    """
    found = source.named(panel.games)
    panel.check("TextWorldEnv.panel", {name: path.read_bytes() for name, path in found.items()})
    return GameFiles(tuple(found[name] for name in panel.games))


def open_folder(folder: str | Path) -> GameFiles:
    """The games of a folder: `*.z8`, each with the .json that TextWorld writes beside it."""
    key, path = "TextWorldEnv.games", Path(folder)
    require(
        path.is_dir(), key, str(folder), "there is no such folder; give one with games (*.z8, each with its .json)."
    )
    games = tuple(sorted(path.glob("*.z8")))
    require(bool(games), key, str(folder), "the folder has no games; give one with *.z8 files, each with its .json.")
    return GameFiles(games)
