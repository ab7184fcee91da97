"""TextWorld (Côté et al. 2018, arXiv 1806.11532) as an environment that search can branch.

Games come from TextWorld's own generator, run in the interpreter that it uses, and are followed by its own logic. Ours
is that a state is a value: see interpreter.py and world.py. Departures:

- commands that leave the story (save, restart, undo, ...) and several commands in a line are refused: see spoken.py;
- what is shown is TextWorld's feedback without banner, prompt and status line: see transcript.py.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Unpack

from tsr_lightning.envs.validate import whole
from tsr_lightning.worlds.command_env import SHORT_TRIAL, CommandEnv, CommandEnvOptions, Reply
from tsr_lightning.worlds.panels import load_panel
from tsr_lightning.worlds.textworld.game import Answer, PlayableGame, Position, open_game
from tsr_lightning.worlds.textworld.kinds import GameKind, HintName, KindName, MilestonesName
from tsr_lightning.worlds.textworld.package import check_installed
from tsr_lightning.worlds.textworld.sources import (
    GameSource,
    GeneratedGames,
    default_cache,
    open_folder,
    open_panel,
)


class TextWorldEnv(CommandEnv[Position]):
    """A game of TextWorld, one command a turn.

    Args:
        kind: the games that are generated: "custom", "simple", "coin_collector" or "treasure_hunter"; see `GameKind`.
        world_size, objects, quest_length: of custom games.
        milestones, hint: of simple games.
        level: of coin collectors and treasure hunters.
        game_count: different games; a seed picks one, modulo this. None: every seed has a game of its own.
        games: a folder of games to play instead of generated ones (`*.z8`, each with its .json); the seed picks one,
            modulo their number.
        panel: plays the games of an evaluation panel alone: a name of the package or a JSON file, see `panels.py`. Its
            games are named by their seeds, and in a folder by their files.
        cache: where generated games are kept, 0.4 MB each; None: see `default_cache`.
        surroundings: whether an answer begins with the room and ends with what the player carries, as in the Guide.
        options: of `CommandEnv`; by default 12 turns, as in the Guide's trials on w2-o3-q4 (24 on w4-o6-q8). Dense
            rewards are paid by the game's score over its maximum, the Guide's normalisation; custom games, coin
            collectors and treasure hunters have one point, for winning.
    """

    verbs = (
        "look",
        "inventory",
        "go <direction>",
        "examine <thing>",
        "take <thing>",
        "take <thing> from <place>",
        "drop <thing>",
        "put <thing> on <place>",
        "insert <thing> into <place>",
        "open <thing>",
        "close <thing>",
        "lock <thing> with <key>",
        "unlock <thing> with <key>",
        "eat <thing>",
    )

    def __init__(
        self,
        kind: KindName = "custom",
        world_size: int = 2,
        objects: int = 3,
        quest_length: int = 4,
        milestones: MilestonesName = "dense",
        hint: HintName = "detailed",
        level: int = 1,
        game_count: int | None = None,
        games: str | Path | None = None,
        panel: str | Path | None = None,
        cache: str | Path | None = None,
        surroundings: bool = True,
        **options: Unpack[CommandEnvOptions],
    ) -> None:
        super().__init__(**(CommandEnvOptions(max_turns=SHORT_TRIAL) | options))
        if game_count is not None:
            whole("TextWorldEnv.game_count", game_count)
        self._surroundings = surroundings
        self._source: GameSource
        if games is None:
            made_from = GameKind(kind, world_size, objects, quest_length, milestones, hint, level)
            folder = default_cache() if cache is None else Path(cache)
            self._source = GeneratedGames(made_from, check_installed(), folder.absolute(), game_count)
        else:
            self._source = open_folder(games)
        if panel is not None:
            self._source = open_panel(self._source, load_panel("TextWorldEnv.panel", panel))

    def prepare(self, seeds: Sequence[int], /) -> None:
        """Has the games of these seeds made in the background."""
        self._source.prepare(seeds)

    def begin(self, seed: int) -> tuple[Position, str]:
        game = open_game(self._source.path(seed))
        return game.beginning.position, self._told(game, game.beginning)

    def obey(self, game: Position, command: str) -> Reply[Position]:
        played = _game(game)
        answer = played.step(game, command)
        after = answer.position
        return Reply(after, self._told(played, answer), after.won, after.lost, answer.problem)

    def commands(self, game: Position) -> Sequence[str]:
        return () if game.won or game.lost else _game(game).situation(game).commands

    def goal(self, game: Position) -> str:
        return _game(game).world.goal

    def progress(self, game: Position) -> float:
        """The game's score over its maximum, 1 when won."""
        return 1.0 if game.won else max(0.0, game.score / _game(game).world.max_score)

    def plan(self, game: Position) -> Sequence[str] | None:
        """TextWorld's winning policy, which follows every detour; None after a step that it takes for irreversible."""
        if game.won:
            return ()
        return None if game.lost else _game(game).world.plan(game.events)

    def game_key(self, game: Position) -> Hashable:
        """The game's content, the facts, the quests fulfilled so far, and whether it has ended.

        What the game's parser remembers of the last command ("it", "again", a question) is left out.
        """
        return game.digest, game.facts, game.fulfilled, game.score, game.won, game.lost

    def _told(self, game: PlayableGame, answer: Answer) -> str:
        if not self._surroundings:
            return answer.text
        room = game.situation(answer.position).room
        return f"You are now in the {room}.\n{answer.text}\n{answer.position.inventory}"


def _game(position: Position) -> PlayableGame:
    return open_game(Path(position.path))
