"""Evaluation panels: named lists of games with a hash of their content, so that two runs mean the same games.

A panel is a JSON file of `name`, `games` (in order) and `digest`. Those in the package are found by name.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tsr_lightning.errors import require

SHIPPED = Path(__file__).parent / "shipped_panels"


@dataclass(frozen=True)
class Panel:
    """A list of games."""

    name: str
    games: tuple[str, ...]  # how the environment finds them: a seed, or a path within a folder of games
    digest: str  # see `digest_of`

    def check(self, key: str, contents: Mapping[str, bytes]) -> None:
        """Raises a ConfigError unless all games are there with the content that they had when the panel was made.

        Args:
            key: the argument that the games come from, such as "ALFWorldEnv.games".
            contents: of the panel's games at least, by their names.
        """
        missing = [game for game in self.games if game not in contents]
        remedy = f"{len(missing)} of the {len(self.games)} games are missing, such as {missing[:1]}; give all of them."
        require(not missing, key, self.name, remedy)
        found = digest_of({game: contents[game] for game in self.games})
        remedy = f"its games have the hash {found} and not {self.digest}, so they are not the panel's; get those."
        require(found == self.digest, key, self.name, remedy)

    def save(self, path: str | Path) -> None:
        """Writes the panel as a file that `load_panel` reads."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def make_panel(name: str, contents: Mapping[str, bytes]) -> Panel:
    """The panel of these games, in their order."""
    return Panel(name, tuple(contents), digest_of(contents))


def digest_of(contents: Mapping[str, bytes]) -> str:
    """A hash of games, their names and their order: 24 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=12)
    for game, content in contents.items():
        for part in (game.encode(), content):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def load_panel(key: str, name: str | Path) -> Panel:
    """A panel of the package by its name, or of a file by its path.

    Args:
        key: the argument that names it, such as "ALFWorldEnv.panel".
    """
    require(isinstance(name, str | Path), key, name, "give the name of a panel, or the path of a JSON file.")
    shipped = SHIPPED / f"{name}.json"
    path = shipped if shipped.is_file() else Path(name)
    known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.json")))
    require(path.is_file(), key, str(name), f"there is no such panel; take one of {known}, or the path of a JSON file.")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        games = tuple(str(game) for game in read["games"])
        panel = Panel(str(read["name"]), games, str(read["digest"]))
    except (ValueError, KeyError, TypeError):
        panel = Panel("", (), "")
    remedy = "it is no panel, so give a JSON file with name, games (at least one) and digest."
    require(bool(panel.games), key, str(name), remedy)
    return panel
