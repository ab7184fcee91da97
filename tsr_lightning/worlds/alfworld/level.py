"""A playable game: a scene, its start and its goal."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tsr_lightning.worlds.alfworld.goals import Goal
from tsr_lightning.worlds.alfworld.grammars import Grammar
from tsr_lightning.worlds.alfworld.scene import PROPERTIES, Scene, mask_of, numbered
from tsr_lightning.worlds.alfworld.state import NOTHING, State
from tsr_lightning.worlds.alfworld.tasks import kind_of

STATES = ("isclean", "ishot", "iscool", "issliced", "istoggled")  # the order of the last fields of `State`


@dataclass(frozen=True, eq=False)
class Level:
    """A scene, its start and its goal."""

    name: str
    scene: Scene
    start: State
    goal: Goal
    digest: str  # of all facts, task and goal: equal for equal games

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Level) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def task(self) -> str:
        """The kind of task, by ALFWorld's name."""
        return kind_of(self.goal)[0]

    def is_solved(self, state: State) -> bool:
        """True if the goal holds."""
        held, total = self.goal.conditions(self.scene, state)
        return held == total

    def progress(self, state: State) -> float:
        """The share of the goal's conditions that hold."""
        held, total = self.goal.conditions(self.scene, state)
        return held / total


Facts = Mapping[str, Sequence[tuple[str, ...]]]  # by predicate in lower case, the arguments of each fact


def build(name: str, facts: Facts, goal: Goal, task: str, grammar: Grammar) -> Level:
    """The level of initial facts.

    Args:
        name: of the game.
        facts: ids in lower case; predicates without facts may be left out.
        goal: of the game.
        task: as the game says it.
        grammar: how it speaks.

    Raises:
        KeyError, ValueError: if a fact names what no other fact introduces, or the player's place is missing.
    """
    places_of, receptacle_types, thing_types = (
        {id: value for id, value in facts[predicate]}  # noqa: C416, a fact of another length fails here
        for predicate in ("receptacleatlocation", "receptacletype", "objecttype")
    )
    ((_, start),) = facts["atlocation"]
    # only ids that occur in the facts count
    located = facts.get("objectatlocation", ())
    place_ids = sorted({start, *places_of.values(), *(place for _, place in located)})
    receptacle_ids, thing_ids = sorted(places_of), sorted(thing_types)
    names = numbered([*receptacle_ids, *thing_ids])
    place_names = numbered(place_ids)
    thing_index = {id: index for index, id in enumerate(thing_ids)}
    receptacle_index = {id: index for index, id in enumerate(receptacle_ids)}
    place_index = {id: index for index, id in enumerate(place_ids)}

    def things_with(predicate: str) -> int:
        return mask_of(thing_index[thing] for (thing,) in facts.get(predicate, ()))

    def receptacles_with(predicate: str) -> int:
        return mask_of(receptacle_index[receptacle] for (receptacle,) in facts.get(predicate, ()))

    can_contain = set(facts.get("cancontain", ()))
    inside, inner, at = [0] * len(receptacle_ids), [0] * len(thing_ids), [0] * len(place_ids)
    for thing, receptacle in facts.get("inreceptacle", ()):
        inside[receptacle_index[receptacle]] |= 1 << thing_index[thing]
    for thing, outer in facts.get("inreceptacleobject", ()):
        inner[thing_index[outer]] |= 1 << thing_index[thing]
    for thing, place in located:
        at[place_index[place]] |= 1 << thing_index[thing]
    held = [thing_index[thing] for _, thing in facts.get("holds", ())]
    scene = Scene(
        receptacles=tuple(names[id] for id in receptacle_ids),
        receptacle_types=tuple(receptacle_types[id] for id in receptacle_ids),
        places=tuple(place_index[places_of[id]] for id in receptacle_ids),
        openable=receptacles_with("openable"),
        things=tuple(names[id] for id in thing_ids),
        thing_types=tuple(thing_types[id] for id in thing_ids),
        properties={name: things_with(name) for name in PROPERTIES},
        inner=tuple(inner),
        accepted=tuple(
            mask_of(i for i, thing in enumerate(thing_ids) if (receptacle_types[id], thing_types[thing]) in can_contain)
            for id in receptacle_ids
        ),
        place_names=tuple(place_names[id] for id in place_ids),
        task=task,
        grammar=grammar,
    )
    state = State(
        place_index[start],
        held[0] if held else NOTHING,
        receptacles_with("opened"),
        tuple(inside),
        tuple(at),
        (0,) * len(receptacle_ids),
        *(things_with(predicate) for predicate in STATES),
    )
    stated = sorted((predicate, *arguments) for predicate, found in facts.items() for arguments in found)
    return Level(name, scene, state, goal, _digest([*stated, goal, task, grammar.name]))


def _digest(parts: Iterable[object]) -> str:
    return hashlib.blake2b("\n".join(map(repr, parts)).encode(), digest_size=12).hexdigest()
