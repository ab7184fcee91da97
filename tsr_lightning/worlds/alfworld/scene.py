"""The constant part of a game: receptacles, things, places and their properties. Sets of things are bit masks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tsr_lightning.worlds.alfworld.grammars import Grammar

# facts of one thing, by their PDDL names in lower case
PROPERTIES = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isreceptacleobject")
CLEANING, HEATING, COOLING = ("sinkbasintype", "sinktype"), ("microwavetype",), ("fridgetype",)
CUTTING = ("knifetype", "butterknifetype")


def bits(mask: int) -> Iterator[int]:
    """The members of a set, in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def mask_of(members: Iterable[int]) -> int:
    """The set of these members."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask


@dataclass(frozen=True, eq=False)
class Scene:
    """A room and its task. R receptacles, T things and L places, each in the order of their raw ids."""

    receptacles: tuple[str, ...]  # [R] names, such as "cabinet 3"
    receptacle_types: tuple[str, ...]  # [R] such as "cabinettype"
    places: tuple[int, ...]  # [R] the place of each
    openable: int  # set of receptacles
    things: tuple[str, ...]  # [T] names
    thing_types: tuple[str, ...]  # [T]
    properties: Mapping[str, int]  # by each of PROPERTIES the set of things that have it
    inner: tuple[int, ...]  # [T] the set of things inside each
    accepted: tuple[int, ...]  # [R] the set of things that can be put there
    place_names: tuple[str, ...]  # [L] such as "loc 7"
    task: str  # as the game says it, such as "put a clean mug in shelf."
    grammar: Grammar

    @cached_property
    def here(self) -> tuple[tuple[int, ...], ...]:
        """[L] the receptacles at each place."""
        found: list[list[int]] = [[] for _ in self.place_names]
        for receptacle, place in enumerate(self.places):
            found[place].append(receptacle)
        return tuple(map(tuple, found))

    @cached_property
    def ways(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """[L] the commands that lead away from each place, with the receptacle that each names."""
        return tuple(
            tuple((f"go to {name}", r) for r, name in enumerate(self.receptacles) if self.places[r] != place)
            for place in range(len(self.place_names))
        )

    @cached_property
    def knives(self) -> int:
        """The set of things that cut."""
        return mask_of(thing for thing, kind in enumerate(self.thing_types) if kind in CUTTING)

    def of_type(self, kind: str) -> int:
        """The set of things of a type."""
        return mask_of(thing for thing, other in enumerate(self.thing_types) if other == kind)

    def receptacles_of(self, *kinds: str) -> tuple[int, ...]:
        """The receptacles of any of these types."""
        return tuple(r for r, other in enumerate(self.receptacle_types) if other in kinds)


def numbered(ids: Iterable[str]) -> dict[str, str]:
    """Names by raw id, numbered per kind, the last id first: of n mugs the first in sorted order is "mug n".

    A kind is the part of an id before the first `_bar_`, with "basin" after it where the id contains that.
    """
    ordered = sorted(ids)
    kinds = {id: id.partition("_bar_")[0] + ("basin" if "basin" in id else "") for id in ordered}
    left: dict[str, int] = {}
    for kind in kinds.values():
        left[kind] = left.get(kind, 0) + 1
    names = {}
    for id, kind in kinds.items():
        names[id] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names
