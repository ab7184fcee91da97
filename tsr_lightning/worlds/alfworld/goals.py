"""The six kinds of goal: whether one is reached, the share of its conditions that hold, and a bound on what is left.

A goal's conditions are those of its PDDL formula that can change, and before a thing is placed, having it in hand, for
the things that meet most of them:

- place a thing of a type in a receptacle of a type: it is in hand or placed; it is placed;
- the same with a clean, hot or cool thing: besides, it is clean, hot or cool;
- place two: both of this for two things in one receptacle;
- look at a thing under a lamp: it is in hand; a lamp is lit; the player stands by a lit lamp.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from tsr_lightning.worlds.alfworld.effort import IMPOSSIBLE, commands_to_light, commands_to_place, commands_to_place_two
from tsr_lightning.worlds.alfworld.scene import CLEANING, COOLING, HEATING, Scene, bits
from tsr_lightning.worlds.alfworld.state import NOTHING, State


class Goal(Protocol):
    """A goal: its conditions, a bound on the commands left, and the things that a plan may use."""

    def conditions(self, scene: Scene, state: State) -> tuple[int, int]:
        """Counts the conditions that hold, and all of them; the goal is reached if all hold."""

    def commands_left(self, scene: Scene, state: State) -> int:
        """No more than the commands of a shortest plan; IMPOSSIBLE only if there is none."""

    def relevant(self, scene: Scene) -> "Relevant":
        """Returns the parts of the scene that a plan may use."""


class Relevant(NamedTuple):
    """Parts of a scene."""

    things: int  # set of those that may be taken
    targets: tuple[int, ...] = ()  # receptacles to put them in
    tools: tuple[int, ...] = ()  # receptacles that change them
    lamps: int = 0  # set of things


@dataclass(frozen=True)
class Change:
    """A state that a thing must be in."""

    name: str  # "clean", "hot" or "cool", as the field of `State`
    needs: str  # the property of things that can get into it
    tools: tuple[str, ...]  # types of receptacles that do it

    def holds(self, state: State) -> int:
        """The set of things in this state."""
        return _FIELDS[self.name](state)


_FIELDS = {
    "clean": lambda state: state.clean,
    "hot": lambda state: state.hot,
    "cool": lambda state: state.cool,
}
CHANGES = {
    change.name: change
    for change in (
        Change("clean", "cleanable", CLEANING),
        Change("hot", "heatable", HEATING),
        Change("cool", "coolable", COOLING),
    )
}


@dataclass(frozen=True)
class Place:
    """Some thing of a type is in some receptacle of a type, changed before or after if `change` says so."""

    thing_type: str
    receptacle_type: str
    change: Change | None = None

    def conditions(self, scene: Scene, state: State) -> tuple[int, int]:
        things, targets, _, _ = self.relevant(scene)
        placed = _listed(state, targets) & things
        near = placed | (1 << state.held & things if state.held != NOTHING else 0)
        if self.change is None:
            return (2 if placed else 1 if near else 0), 2
        changed = self.change.holds(state) & things
        if placed & changed:
            return 3, 3
        return (2 if near & changed or placed else 1 if near or changed else 0), 3

    def commands_left(self, scene: Scene, state: State) -> int:
        things, targets, tools, _ = self.relevant(scene)
        changed = self.change.holds(state) if self.change else things
        return min(
            (
                commands_to_place(scene, state, thing, targets, () if changed >> thing & 1 else tools)
                for thing in bits(things)
                if changed >> thing & 1 or tools
            ),
            default=IMPOSSIBLE,
        )

    def relevant(self, scene: Scene) -> Relevant:
        return _relevant(scene, self.thing_type, self.receptacle_type, self.change)


@dataclass(frozen=True)
class PlaceTwo:
    """Two things of a type are in one receptacle of a type."""

    thing_type: str
    receptacle_type: str

    def conditions(self, scene: Scene, state: State) -> tuple[int, int]:
        things, targets, _, _ = self.relevant(scene)
        most = max(((state.inside[target] & things).bit_count() for target in targets), default=0)
        if most >= 2:
            return 4, 4
        held = 1 << state.held & things if state.held != NOTHING else 0
        spare = any(
            (state.inside[target] & things).bit_count() == most and held & ~state.inside[target] for target in targets
        )
        return 2 * most + bool(held and spare), 4

    def commands_left(self, scene: Scene, state: State) -> int:
        things, targets, _, _ = self.relevant(scene)
        found = tuple(bits(things))
        return min((commands_to_place_two(scene, state, found, target) for target in targets), default=IMPOSSIBLE)

    def relevant(self, scene: Scene) -> Relevant:
        return _relevant(scene, self.thing_type, self.receptacle_type, None)


@dataclass(frozen=True)
class LookAt:
    """A thing of a type is in hand, and the player stands by a lit lamp of a type."""

    thing_type: str
    lamp_type: str

    def conditions(self, scene: Scene, state: State) -> tuple[int, int]:
        things, _, _, lamps = self.relevant(scene)
        lit = state.lit & lamps
        beside = any(state.inside[receptacle] & lit for receptacle in scene.here[state.place])
        held = state.held != NOTHING and bool(things >> state.held & 1)
        return held + bool(lit) + beside, 3

    def commands_left(self, scene: Scene, state: State) -> int:
        things, _, _, lamps = self.relevant(scene)
        stands = [(r, lamp) for r, mask in enumerate(state.inside) for lamp in bits(mask & lamps)]
        return commands_to_light(scene, state, tuple(bits(things)), stands)

    def relevant(self, scene: Scene) -> Relevant:
        lamps = _of_type(scene, self.lamp_type) & scene.properties["toggleable"]
        return Relevant(_of_type(scene, self.thing_type), lamps=lamps)


@lru_cache(maxsize=1024)
def _of_type(scene: Scene, kind: str) -> int:
    return scene.of_type(kind)


@lru_cache(maxsize=1024)
def _relevant(scene: Scene, thing_type: str, receptacle_type: str, change: Change | None) -> Relevant:
    things, targets = scene.of_type(thing_type), scene.receptacles_of(receptacle_type)
    if change is None:
        return Relevant(things, targets)
    return Relevant(things & scene.properties[change.needs], targets, scene.receptacles_of(*change.tools))


def _listed(state: State, receptacles: tuple[int, ...] | range) -> int:
    """The set of things that any of these receptacles lists."""
    mask = 0
    for receptacle in receptacles:
        mask |= state.inside[receptacle]
    return mask
