"""Level files in the usual text format, plain or gzip, such as Boxoban's (github.com/google-deepmind/boxoban-levels).

`#` wall, `@` player, `+` player on goal, `$` box, `*` box on goal, `.` goal, blank floor. A line that begins with `;`
names the level below it; blank lines or such names separate levels.
"""

import gzip
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tsr_lightning.envs.sokoban.board import MAX_BOXES, Board, Layout, spread
from tsr_lightning.errors import ConfigError

_WALL, _GOALS, _BOXES, _PLAYERS = "#", ".*+", "$*", "@+"
_FLOOR = " -_"  # some collections write floor as - or _
_KNOWN = frozenset(_WALL + _GOALS + _BOXES + _PLAYERS + _FLOOR)


def read_levels(path: str | Path) -> tuple[Board, ...]:
    """The levels of a file, in its order.

    Raises:
        ConfigError: with the file, the level and the remedy.
    """
    path = Path(path)
    try:
        return _read(path, changed=path.stat().st_mtime_ns)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such level file; give SokobanEnv.levels the path of one.") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a level file ({error}); give a text file or a .gz of one."
        ) from None


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> tuple[Board, ...]:
    """`changed` is the time of the last change, so that an edited file is read again."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    levels = tuple(parse_level(rows, f"{path}, level {name}") for name, rows in _split(text))
    if not levels:
        raise ConfigError(f"{path}: holds no level; give a file with rows of # around each level.")
    return levels


def _split(text: str) -> list[tuple[str, list[str]]]:
    """The rows of each level with its name: that of the header above it, or its number in the file from 1."""
    found: list[tuple[str, list[str]]] = []
    name, rows = "", list[str]()
    for line in [*text.splitlines(), ""]:
        if line.strip() and not line.startswith(";"):
            rows.append(line.rstrip())
            continue
        if rows:
            found.append((name or str(len(found) + 1), rows))
            name, rows = "", []
        if line.startswith(";"):
            name = line[1:].strip()
    return found


def parse_level(rows: Sequence[str], where: str) -> Board:
    """A level from its rows; `where` begins an error message.

    Raises:
        ConfigError: if it cannot be played.
    """

    def demand(valid: bool, problem: str) -> None:
        if not valid:
            raise ConfigError(f"{where}: {problem}")

    unknown = min(set("".join(rows)) - _KNOWN, default="")
    demand(not unknown, f"unknown symbol {unknown!r}; use # @ + $ * . and blanks.")
    cols = max(len(row) for row in rows)
    text = "".join(row.ljust(cols) for row in rows)

    def cells(symbols: str) -> list[int]:
        return [cell for cell, symbol in enumerate(text) if symbol in symbols]

    players, boxes, targets = cells(_PLAYERS), cells(_BOXES), cells(_GOALS)
    demand(len(players) == 1, f"has {len(players) or 'no'} player{'s' * (len(players) > 1)}; put one @ or + in it.")
    demand(bool(boxes), "has no box; put at least one $ and one . in it.")
    demand(len(boxes) == len(targets), f"has boxes {len(boxes)} and goals {len(targets)}; make them equal.")
    demand(len(boxes) <= MAX_BOXES, f"has boxes {len(boxes)}; leave out levels with more than {MAX_BOXES}.")
    demand(boxes != targets, "is solved from the start; move a box off its goal.")
    # cells that the player could not reach if there were no boxes count as walls
    free = sum(1 << cell for cell, symbol in enumerate(text) if symbol != _WALL)
    reached = spread(1 << players[0], free, cols)
    inside = frozenset(cell for cell in range(len(text)) if reached >> cell & 1)
    border = any(cell // cols in (0, len(rows) - 1) or cell % cols in (0, cols - 1) for cell in inside)
    demand(not border, "is not closed; surround it with walls #.")
    demand(inside.issuperset(boxes + targets), "walls keep the player from a box or a goal; open them or remove it.")
    layout = Layout(len(rows), cols, frozenset(range(len(text))) - inside, tuple(targets))
    return Board(layout, players[0], tuple(boxes))
