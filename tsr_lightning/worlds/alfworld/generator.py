"""Generated scenes: a room, its things and a task that can be solved by construction and is not solved yet.

A goal is drawn with what it needs (its receptacle, tool or lamp, and things that go there), and the rest of the room
around it. What a goal asks for never begins where it has to go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from tsr_lightning.envs.turns import Draws
from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.worlds.alfworld.grammars import Grammar
from tsr_lightning.worlds.alfworld.layouts import (
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    HELD_BY,
    HOLLOW,
    OPENABLE,
    ROOMS,
    SLICEABLE,
    Room,
)
from tsr_lightning.worlds.alfworld.level import Level, build
from tsr_lightning.worlds.alfworld.tasks import KINDS, Kind

OptionT = TypeVar("OptionT")

_NEEDS = {"clean": (CLEANABLE, "sinkbasin"), "hot": (HEATABLE, "microwave"), "cool": (COOLABLE, "fridge")}
_SHARED = 0.2  # chance that a receptacle stands at the place of the one before it, if that is of its type
_START = "loc_bar_start"  # where the player begins, and no receptacle stands


@dataclass(frozen=True)
class SceneSpec:
    """The kinds of tasks and rooms, and the sizes, that scenes are drawn from.

    Args:
        tasks: kinds of tasks, equally likely; of `tasks.KINDS`.
        rooms: of `layouts.ROOMS`.
        receptacles: the fewest and the most of a room.
        things: the fewest and the most of a room, lamps left out.
    """

    tasks: tuple[str, ...]
    rooms: tuple[str, ...]
    receptacles: tuple[int, int]
    things: tuple[int, int]

    def __post_init__(self) -> None:
        for name, known in (("tasks", KINDS), ("rooms", ROOMS)):
            given = getattr(self, name)
            require(len(given) > 0, f"ALFWorldEnv.{name}", given, f"give at least one of {', '.join(known)}.")
            for value in given:
                one_of(f"ALFWorldEnv.{name}", value, tuple(known))
        for name, least in (("receptacles", 3), ("things", 2)):
            bounds = getattr(self, name)
            whole(f"ALFWorldEnv.{name}", bounds[0], at_least=least)
            whole(f"ALFWorldEnv.{name}", bounds[1], at_least=bounds[0])
        for task in self.tasks:
            fits = any(_suits(ROOMS[room], KINDS[task]) for room in self.rooms)
            require(fits, "ALFWorldEnv.tasks", task, f"none of the rooms {', '.join(self.rooms)} has it; add a room.")


def generate(key: Key, spec: SceneSpec, grammar: Grammar, name: str) -> Level:
    """The scene of a key."""
    for attempt in count():
        level = _attempt(Draws(key.fold_in(attempt)), spec, grammar, name)
        if level is not None:
            return level
    raise AssertionError("count() does not end")


def _attempt(draws: Draws, spec: SceneSpec, grammar: Grammar, name: str) -> Level | None:
    """A scene, or None if no thing of the room drawn fits the goal drawn."""
    kind = KINDS[_choice(draws, spec.tasks)]
    room = ROOMS[_choice(draws, [room for room in spec.rooms if _suits(ROOMS[room], kind)])]
    receptacles = _receptacles(draws, room, kind, _between(draws, spec.receptacles))
    goal_types = _goal_types(draws, room, kind, receptacles)
    if goal_types is None:
        return None
    thing_type, other = goal_types
    wanted = kind.count + draws.below(2)  # sometimes one more than the goal needs
    lying = [(thing_type, _choice(draws, _starts(thing_type, other, receptacles))) for _ in range(wanted)]
    others = [thing for thing in room.things if thing != thing_type and _standing(thing, receptacles)]
    number = _between(draws, spec.things)
    while others and len(lying) < number:
        thing = _choice(draws, others)
        lying.append((thing, _choice(draws, _standing(thing, receptacles))))
    if kind.under_lamp:
        lying.append((other, _choice(draws, _standing(other, receptacles))))
    facts = _facts(draws, receptacles, lying)
    goal = kind.goal(f"{thing_type}type", f"{other}type")
    level = build(name, facts, goal, kind.sentence(thing_type, other, draws.below(2)), grammar)
    return None if level.is_solved(level.start) else level


def _suits(room: Room, kind: Kind) -> bool:
    """True if a room has what a kind of task needs."""
    if kind.under_lamp:
        return bool(room.lamps)
    return kind.change is None or _NEEDS[kind.change.name][1] in room.receptacles


def _receptacles(draws: Draws, room: Room, kind: Kind, count: int) -> list[str]:
    """The types of a room's receptacles: the task's tool first, then drawn."""
    chosen = [] if kind.change is None else [_NEEDS[kind.change.name][1]]
    pool = [type for type, most in room.receptacles.items() for _ in range(most)]
    for type in chosen:
        pool.remove(type)
    while pool and len(chosen) < count:
        chosen.append(pool.pop(draws.below(len(pool))))
    return sorted(chosen)


def _goal_types(draws: Draws, room: Room, kind: Kind, receptacles: Sequence[str]) -> tuple[str, str] | None:
    """The type of the goal's things and that of its receptacle or lamp, of all that can be solved; None if none can."""
    present = sorted(set(receptacles))
    if kind.under_lamp:
        lamps = [lamp for lamp in room.lamps if _standing(lamp, receptacles)]
        pairs = [(thing, lamp) for lamp in lamps for thing in room.things if _standing(thing, receptacles)]
    else:
        fitting = None if kind.change is None else _NEEDS[kind.change.name][0]
        pairs = [
            (thing, target)
            for thing in room.things
            if fitting is None or thing in fitting
            for target in present
            if target in HELD_BY[thing] and _starts(thing, target, receptacles)
        ]
    return _choice(draws, pairs) if pairs else None


def _standing(thing: str, receptacles: Sequence[str]) -> list[int]:
    """The receptacles that a thing can be in."""
    return [index for index, type in enumerate(receptacles) if type in HELD_BY[thing]]


def _starts(thing: str, target: str, receptacles: Sequence[str]) -> list[int]:
    """The receptacles that a thing of the goal can begin in."""
    return [index for index in _standing(thing, receptacles) if receptacles[index] != target]


def _facts(
    draws: Draws, receptacles: Sequence[str], lying: Sequence[tuple[str, int]]
) -> dict[str, list[tuple[str, ...]]]:
    """The facts of receptacles by type, and of things by type and receptacle."""
    facts: dict[str, list[tuple[str, ...]]] = {"atlocation": [("agent1", _START)]}

    def state(predicate: str, *arguments: str) -> None:
        facts.setdefault(predicate, []).append(arguments)

    ids, places = list[str](), list[str]()
    for index, type in enumerate(receptacles):
        basin = type.endswith("basin")
        id = f"{type.removesuffix('basin')}_bar_{index:02d}{'_bar_basin' if basin else ''}"
        shares = index > 0 and receptacles[index - 1] == type and draws.uniform() < _SHARED
        places.append(places[-1] if shares else f"loc_bar_{index:02d}")
        ids.append(id)
        state("receptacletype", id, f"{type}type")
        state("receptacleatlocation", id, places[-1])
        if type in OPENABLE:
            state("openable", id)
    for number, (thing, index) in enumerate(lying):
        id = f"{thing}_bar_{number:02d}"
        state("objecttype", id, f"{thing}type")
        state("inreceptacle", id, ids[index])
        state("objectatlocation", id, places[index])
        for predicate, members in _PROPERTIES.items():
            if thing in members:
                state(predicate, id)
    for thing in sorted({thing for thing, _ in lying}):
        for type in sorted(set(receptacles) & set(HELD_BY[thing])):
            state("cancontain", f"{type}type", f"{thing}type")
    return facts


_LAMPS = frozenset(lamp for room in ROOMS.values() for lamp in room.lamps)
_PROPERTIES = {
    "pickupable": frozenset(HELD_BY) - _LAMPS,
    "cleanable": CLEANABLE,
    "heatable": HEATABLE,
    "coolable": COOLABLE,
    "sliceable": SLICEABLE,
    "toggleable": _LAMPS,
    "isreceptacleobject": HOLLOW,
}


def _choice(draws: Draws, options: Sequence[OptionT]) -> OptionT:
    return options[draws.below(len(options))]


def _between(draws: Draws, bounds: tuple[int, int]) -> int:
    return bounds[0] + draws.below(bounds[1] - bounds[0] + 1)
