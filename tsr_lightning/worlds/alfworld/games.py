"""Published games: a folder with `game.tw-pddl` or `initial_state.pddl` files at any depth.

A game's name is the path of its folder within the folder of games. What a `game.tw-pddl` says in its grammar is code
for the original engine and is never run here: the task is read from it, and which of the two phrasings it has.
"""

import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.worlds.alfworld.grammars import MOVE, PUT, Grammar
from tsr_lightning.worlds.alfworld.level import Level, build
from tsr_lightning.worlds.alfworld.pddl import read_problem
from tsr_lightning.worlds.alfworld.tasks import KINDS, kind_of

GAME, PROBLEM = "game.tw-pddl", "initial_state.pddl"

_TASK = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')


class GameFolder:
    """The games in a folder.

    Args:
        key: the argument that names it, such as "ALFWorldEnv.games".
        folder: where to look.
        grammar: the phrasing of all games; None for each file's own, and "put" where there is only the problem.
    """

    def __init__(self, key: str, folder: str | Path, grammar: Grammar | None = None) -> None:
        require(isinstance(folder, str | Path), key, folder, "give the folder that games lie in.")
        self._key, self._folder, self._grammar = key, Path(folder), grammar
        require(self._folder.is_dir(), key, str(folder), "there is no such folder; give the one that games lie in.")
        found = {path.parent: path for name in (PROBLEM, GAME) for path in self._folder.rglob(name)}
        self._paths = {str(path.relative_to(self._folder).parent): path for path in found.values()}
        self.names = tuple(sorted(self._paths))
        if not self.names:
            raise ConfigError(
                f"{key} is {str(folder)!r}: no {GAME} and no {PROBLEM} is in it or below it; give the folder of "
                "published games, such as json_2.1.1/valid_seen."
            )
        self.level = lru_cache(maxsize=512)(self._level)

    def content(self, name: str) -> bytes:
        """The SHA-256 of a game's file, for panels."""
        return hashlib.sha256(self._paths[name].read_bytes()).digest()

    def _level(self, name: str) -> Level:
        path = self._paths[name]
        try:
            return read_game(path, name, self._grammar)
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
            explained = isinstance(error, ValueError | OSError | RecursionError)
            why = str(error) if explained else f"its facts do not fit together ({error})"
            raise ConfigError(f"{self._key}: {path} is no game of ALFWorld: {why}; leave it out.") from error


def read_game(path: Path, name: str, grammar: Grammar | None = None) -> Level:
    """The level of a game's file.

    Raises:
        ValueError, KeyError, TypeError: if it is none.
    """
    text = path.read_text(encoding="utf-8")
    if path.name == PROBLEM:
        facts, goal = read_problem(text)
        kind, thing, other = kind_of(goal)
        return build(name, facts, goal, KINDS[kind].sentence(thing, other), grammar or PUT)
    content = json.loads(text)
    facts, goal = read_problem(content["pddl_problem"])
    written = content["grammar"]
    found = _TASK.search(written)
    if found is None:
        raise ValueError("its grammar has no task")
    task = json.loads(f'"{found.group(1)}"')
    return build(name, facts, goal, task, grammar or recognised(written))


def recognised(grammar: str) -> Grammar:
    """Recognises the phrasing of a grammar's text."""
    return MOVE if "move {o} to {r}" in grammar else PUT
