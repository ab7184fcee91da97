"""ALFWorld as a text environment that search can branch: an engine of our own, without a planner and without PDDL code.

Published games and their phrasing are those of github.com/alfworld/alfworld; the engine answers every command as the
original does (docs/alfworld.md has the checks and its oddities). It departs from the original in this: an episode ends
when the goal is reached, as in ALFWorld's own batch environment, and a response is read as `CommandEnv` says.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Unpack

from tsr_lightning.envs.reading import STRICT, Answer
from tsr_lightning.envs.validate import one_of
from tsr_lightning.errors import require
from tsr_lightning.worlds.alfworld.actions import NO_EFFECT, admissible, answer, apply
from tsr_lightning.worlds.alfworld.generator import SceneSpec
from tsr_lightning.worlds.alfworld.grammars import GRAMMARS, GrammarName
from tsr_lightning.worlds.alfworld.layouts import ROOMS, RoomName
from tsr_lightning.worlds.alfworld.level import Level
from tsr_lightning.worlds.alfworld.oracle import Planner
from tsr_lightning.worlds.alfworld.sources import check_playable, open_source
from tsr_lightning.worlds.alfworld.state import State
from tsr_lightning.worlds.alfworld.tasks import KINDS, TaskName
from tsr_lightning.worlds.alfworld.text import opening
from tsr_lightning.worlds.command_env import LONG_TRIAL, CommandEnv, CommandEnvOptions, CommandState, Reply
from tsr_lightning.worlds.panels import load_panel


class Game(NamedTuple):
    """A level and its state."""

    level: Level
    state: State


class ALFWorldEnv(CommandEnv[Game]):
    """Household tasks: find things, clean, heat or cool them, and put them where they are asked for.

    Args:
        games: a folder of published games (`game.tw-pddl`, or `initial_state.pddl` alone, at any depth); the seed picks
            one, modulo their number. None: generated scenes.
        panel: plays the games of an evaluation panel alone: a name of the package or a JSON file, see `panels.py`. The
            names of published games are their paths within `games`.
        grammar: "put" ("put X in/on Y", ALFWorld 0.2.2) or "move" ("move X to Y", 0.4 and later, with "help"); None:
            as each game's file says, and "move" in generated scenes.
        tasks: of generated scenes, the kinds of tasks; None for all six.
        rooms: of generated scenes, the kinds of rooms; None for all four.
        receptacles: of generated scenes, the fewest and the most.
        things: of generated scenes, the fewest and the most, lamps left out.
        options: of `CommandEnv`; by default 24 turns.
    """

    example = "go to desk 1"
    asked = "Answer with one command, such as: go to desk 1"
    verbs: ClassVar[Sequence[str]] = (
        "look",
        "inventory",
        "go to <receptacle>",
        "open <receptacle>",
        "close <receptacle>",
        "examine <receptacle or thing>",
        "take <thing> from <receptacle>",
        "put <thing> in/on <receptacle> (or: move <thing> to <receptacle>)",
        "clean <thing> with <receptacle>",
        "heat <thing> with <receptacle>",
        "cool <thing> with <receptacle>",
        "slice <thing> with <thing>",
        "use <thing>",
    )

    def __init__(
        self,
        games: str | Path | None = None,
        panel: str | Path | None = None,
        grammar: GrammarName | None = None,
        tasks: Sequence[TaskName] | None = None,
        rooms: Sequence[RoomName] | None = None,
        receptacles: tuple[int, int] = (6, 12),
        things: tuple[int, int] = (4, 12),
        **options: Unpack[CommandEnvOptions],
    ) -> None:
        super().__init__(**(CommandEnvOptions(max_turns=LONG_TRIAL) | options))
        if grammar is not None:
            one_of("ALFWorldEnv.grammar", grammar, tuple(GRAMMARS))
        for name, value in (("tasks", tasks), ("rooms", rooms)):
            listed = value is None or isinstance(value, list | tuple)
            require(listed, f"ALFWorldEnv.{name}", value, "give a list of names.")
            remedy = (
                "games of a folder are what they are, and it chooses among generated scenes; leave out one of the two."
            )
            require(games is None or value is None, f"ALFWorldEnv.{name}", value, remedy)
        for name, bounds in (("receptacles", receptacles), ("things", things)):
            pair = isinstance(bounds, list | tuple) and len(bounds) == 2  # YAML has lists
            require(pair, f"ALFWorldEnv.{name}", bounds, "give the fewest and the most, such as [6, 12].")
        spec = SceneSpec(
            tuple(KINDS if tasks is None else tasks),
            tuple(ROOMS if rooms is None else rooms),
            (receptacles[0], receptacles[1]),
            (things[0], things[1]),
        )
        found = None if panel is None else load_panel("ALFWorldEnv.panel", panel)
        self._source = open_source(games, found, spec, grammar)
        self._planner = Planner()

    def begin(self, seed: int) -> tuple[Game, str]:
        level = self._source.level(self._source.name(seed))
        check_playable(level)
        return Game(level, level.start), opening(level.scene)

    def read(self, response: str, limit: int) -> Answer:
        """Leniently in any case: the original's commands are in lower case, and it takes no others."""
        read = super().read(response, limit)
        if self.prompt_style.reader is STRICT:
            return read
        return replace(read, actions=tuple(action.lower() for action in read.actions))

    def obey(self, game: Game, command: str) -> Reply[Game]:
        (level, state) = game
        action = admissible(level.scene, state).get(command)
        if action is None:
            return Reply(game, NO_EFFECT, problem=f"{command[:40]!a} is not admissible")
        after = apply(level.scene, state, action)
        return Reply(Game(level, after), answer(level.scene, after, action), won=level.is_solved(after))

    def commands(self, game: Game) -> Sequence[str]:
        return tuple(admissible(game.level.scene, game.state))

    def goal(self, game: Game) -> str:
        return game.level.scene.task

    def progress(self, game: Game) -> float:
        return game.level.progress(game.state)

    def plan(self, game: Game) -> Sequence[str] | None:
        return self._planner.plan(game.level, game.state)

    def game_key(self, game: Game) -> tuple[object, ...]:
        """The level's hash and all of the state that decides how it goes on."""
        return game.level.digest, *game.state.key()

    def extra_info(self, state: CommandState[Game]) -> dict[str, Any]:
        """The game's name and kind of task, and the share of the goal's conditions that hold."""
        level = state.game.level
        return {**super().extra_info(state), "game": level.name, "task": level.task}
