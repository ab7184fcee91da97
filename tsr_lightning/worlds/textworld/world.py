"""TextWorld's logical side of a game: what is true, what can be done, which quests are fulfilled, what would win.

TextWorld follows a game by the events that it reports (textworld.envs.wrappers.tw_inform7.StateTracking), and so does
this, with immutable values: facts as their difference from the first ones, and the events that changed them. All else
is computed from these, by TextWorld's own rules, and cached.
"""

from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path

from textworld.generator.game import Game, GameProgression
from textworld.generator.inform7 import Inform7Game
from textworld.logic import Action, Proposition, State, Variable

from tsr_lightning.errors import ConfigError

Fact = tuple[str, ...]  # name, then name and type of each argument
Facts = tuple[tuple[Fact, ...], tuple[Fact, ...]]  # those that came and those that went since the beginning, sorted

FIRST: Facts = ((), ())
_PER_GAME = 512  # situations that are kept of each game, some 20 kB each


class Situation:
    """The facts of a state, with the commands, the room and the fulfilled quests that follow from them.

    Args:
        state: the facts; not changed.
        game: the game, with its rules.
        inform: the same game, for names.
    """

    def __init__(self, state: State, game: Game, inform: Inform7Game) -> None:
        self._state, self._game, self._inform = state, game, inform

    @cached_property
    def _actions(self) -> list[Action]:
        """The applicable actions, in an order that does not depend on the hash of strings."""
        rules, constants = self._game.kb.rules.values(), self._game.kb.types.constants_mapping
        return sorted(self._state.all_applicable_actions(rules, constants), key=str)

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The admissible commands, sorted."""
        return tuple(sorted(set(self._inform.gen_commands_from_actions(self._actions))))

    @cached_property
    def _by_event(self) -> dict[str, Action]:
        """Actions by the event that reports them; the one with most preconditions, as TextWorld has it."""
        found: dict[str, Action] = {}
        for action in sorted(self._actions, key=lambda action: -len(action.preconditions)):
            names = self._inform._get_name_mapping(action)
            found.setdefault(self._inform.kb.inform7_events[action.name].format(**names).lower(), action)
        return found

    def action(self, event: str) -> Action | None:
        """The action that an event reports, if it changes a fact."""
        action = self._by_event.get(event)
        return action if action is not None and (action.added or action.removed) else None

    def after(self, action: Action) -> State:
        """The facts after an action."""
        state = self._state.copy()
        state.apply(action)
        return state

    @cached_property
    def fulfilled(self) -> frozenset[int]:
        """The quests that the facts fulfil."""
        return frozenset(number for number, quest in enumerate(self._game.quests) if quest.is_winning(self._state))

    @cached_property
    def room(self) -> str:
        """The name of the player's room."""
        [room] = [
            fact.arguments[1] for fact in self._state.facts if fact.name == "at" and fact.arguments[0].type == "P"
        ]
        return str(self._game.infos[room.name].name)


class World:
    """The logical side of a game file.

    Args:
        path: the .json that TextWorld wrote beside the game.

    Raises:
        ConfigError: if it is no game, or one without a plan that wins.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._game: Game = Game.load(str(path))
        except FileNotFoundError:
            raise ConfigError(f"{path}: it is missing beside its .z8; TextWorld writes both.") from None
        except Exception as error:  # whatever a file that is no game makes TextWorld raise
            problem = f"{type(error).__name__}: {error}"[:100]
            raise ConfigError(f"{path}: it is no game of TextWorld's ({problem}); take it out of the folder.") from None
        self._inform = Inform7Game(self._game)
        first: State = self._game.world.state
        self._first = frozenset(map(_plain, first.facts))
        self.goal = " ".join(self._game.objective.split())
        self.max_score: int = self._game.max_score
        self.situation = lru_cache(_PER_GAME)(self._situation)
        self.progression = lru_cache(_PER_GAME)(self._progression)
        if self.plan(()) is None:
            raise ConfigError(f"{path}: TextWorld knows no way to win this game; take it out of the folder.")

    def _situation(self, facts: Facts) -> Situation:
        """Builds the situation of some facts."""
        came, went = facts
        state = State(self._game.kb.logic, map(_proposition, sorted(self._first.difference(went).union(came))))
        return Situation(state, self._game, self._inform)

    def advance(self, facts: Facts, events: Iterable[str]) -> tuple[Facts, tuple[str, ...], frozenset[int]]:
        """The facts after events, those of the events that changed them, and the quests fulfilled meanwhile."""
        changing: tuple[str, ...] = ()
        fulfilled = frozenset[int]()
        for event in events:
            situation = self.situation(facts)
            action = situation.action(event)
            if action is None:
                continue
            changing = (*changing, event)
            now = frozenset(map(_plain, situation.after(action).facts))
            facts = tuple(sorted(now - self._first)), tuple(sorted(self._first - now))
            fulfilled |= self.situation(facts).fulfilled
        return facts, changing, fulfilled

    def plan(self, events: tuple[str, ...]) -> tuple[str, ...] | None:
        """Commands that win after these events, by TextWorld's own planner; None where it knows none."""
        actions = self.progression(events)[0].winning_policy
        return None if actions is None else tuple(self._inform.gen_commands_from_actions(actions))

    def _progression(self, events: tuple[str, ...]) -> tuple[GameProgression, Facts]:
        """TextWorld's record of the quests after these events, which its planner needs. Not to be changed."""
        if not events:
            return GameProgression(self._game), FIRST
        before, facts = self.progression(events[:-1])
        action = self.situation(facts).action(events[-1])
        if action is None:
            raise ValueError(f"the event {events[-1]!r} changes nothing there")
        progression = before.copy()
        progression.update(action)
        return progression, self.advance(facts, events[-1:])[0]


def _plain(fact: Proposition) -> Fact:
    return (fact.name, *(part for argument in fact.arguments for part in (argument.name, argument.type)))


def _proposition(fact: Fact) -> Proposition:
    name, *rest = fact
    return Proposition(name, [Variable(*pair) for pair in zip(rest[::2], rest[1::2], strict=True)])
