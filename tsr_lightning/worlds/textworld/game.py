"""A game of TextWorld as a pure function: a state and a command to the next state and a text."""

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from tsr_lightning.errors import require
from tsr_lightning.worlds.textworld.interpreter import LONGEST_INPUT, MachineState, interpreters
from tsr_lightning.worlds.textworld.spoken import refusal
from tsr_lightning.worlds.textworld.transcript import opening, read_turn
from tsr_lightning.worlds.textworld.world import FIRST, Facts, Situation, World


class Position(NamedTuple):
    """A state of a game."""

    path: str  # of the game's .z8
    digest: str  # of its content: equal games have equal ones
    memory: MachineState  # of the interpreter
    facts: Facts
    events: tuple[str, ...]  # those that changed facts, since the beginning
    fulfilled: tuple[int, ...]  # quests fulfilled so far
    score: int  # the game's own
    inventory: str  # as the game words it
    won: bool = False
    lost: bool = False


class Answer(NamedTuple):
    """The position after a command, and the game's answer."""

    position: Position
    text: str
    problem: str = ""  # why the game did not take it for an action; "" if it did


class PlayableGame:
    """One game file. Everything that it is asked depends on its arguments alone.

    Raises:
        ConfigError: if the file is no game.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        story = path.read_bytes()
        check_story(path, story)
        self._digest = hashlib.blake2b(story, digest_size=12).hexdigest()
        self.world = World(path.with_suffix(".json"))
        self.step = lru_cache(_ANSWERS)(self._step)

    @cached_property
    def beginning(self) -> Answer:
        """The first state, and what the game says there."""
        memory, text, reports = interpreters.begin(self.path)
        first = read_turn(reports)
        fulfilled = tuple(sorted(self.world.situation(FIRST).fulfilled))
        position = Position(
            str(self.path), self._digest, memory, FIRST, (), fulfilled, first.score or 0, first.inventory or ""
        )
        return Answer(position, opening(text))

    def situation(self, position: Position) -> Situation:
        """Returns the facts of a position and what follows from them."""
        return self.world.situation(position.facts)

    def _step(self, position: Position, command: str) -> Answer:
        if command not in self.situation(position).commands and (problem := refusal(command, LONGEST_INPUT)):
            return Answer(position, f"You can't do that here: {problem}.", problem)
        memory, raw = interpreters.step(self.path, position.memory, command)
        turn = read_turn(raw)
        facts, changing, fulfilled = self.world.advance(position.facts, turn.events)
        after = position._replace(
            memory=memory,
            facts=facts,
            events=position.events + changing,
            fulfilled=tuple(sorted(fulfilled.union(position.fulfilled))),
            score=position.score if turn.score is None else turn.score,
            inventory=position.inventory if turn.inventory is None else turn.inventory,
            won=turn.won,
            lost=turn.lost,
        )
        return Answer(after, turn.text, "" if turn.understood else "the game did not understand it")


_ANSWERS = 2048  # kept of each game, some kilobytes each
_GAMES = 256  # kept open


@lru_cache(_GAMES)
def open_game(path: Path) -> PlayableGame:
    """The game of a .z8 file with the .json beside it."""
    return PlayableGame(path)


def check_story(path: Path, story: bytes) -> None:
    """Raises a ConfigError unless a file is a Z-machine game of version 8, whole (Z-machine Standard 1.1, section 11).

    The interpreter is not asked: it reads whatever it is given.
    """
    whole = len(story) >= 64 and story[0] == 8
    if whole:
        length = 8 * int.from_bytes(story[0x1A:0x1C])
        whole = 64 <= length <= len(story) and sum(story[64:length]) & 0xFFFF == int.from_bytes(story[0x1C:0x1E])
    require(whole, "TextWorldEnv.games", str(path), "it is no whole .z8 game; take it out of the folder.")
