"""The six kinds of task by ALFWorld's names, and the sentences that say a goal (templates of its goal library)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tsr_lightning.worlds.alfworld.goals import CHANGES, Change, Goal, LookAt, Place, PlaceTwo

TaskName = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]


@dataclass(frozen=True)
class Kind:
    """A kind of task."""

    templates: tuple[str, str]  # {thing} {other}: the receptacle, or the lamp
    change: Change | None = None
    count: int = 1  # things that it needs
    under_lamp: bool = False

    def goal(self, thing_type: str, other_type: str) -> Goal:
        """The goal about these types."""
        if self.under_lamp:
            return LookAt(thing_type, other_type)
        if self.count == 2:
            return PlaceTwo(thing_type, other_type)
        return Place(thing_type, other_type, self.change)

    def sentence(self, thing_type: str, other_type: str, template: int = 0) -> str:
        """The task, as a game says it."""
        thing, other = thing_type.removesuffix("type"), other_type.removesuffix("type")
        return f"{self.templates[template].format(thing=thing, other=other)}."


KINDS: Mapping[str, Kind] = {
    "pick_and_place_simple": Kind(("put a {thing} in {other}", "put some {thing} on {other}")),
    "look_at_obj_in_light": Kind(
        ("look at {thing} under the {other}", "examine the {thing} with the {other}"), under_lamp=True
    ),
    "pick_clean_then_place_in_recep": Kind(
        ("put a clean {thing} in {other}", "clean some {thing} and put it in {other}"), CHANGES["clean"]
    ),
    "pick_heat_then_place_in_recep": Kind(
        ("put a hot {thing} in {other}", "heat some {thing} and put it in {other}"), CHANGES["hot"]
    ),
    "pick_cool_then_place_in_recep": Kind(
        ("put a cool {thing} in {other}", "cool some {thing} and put it in {other}"), CHANGES["cool"]
    ),
    "pick_two_obj_and_place": Kind(("put two {thing} in {other}", "find two {thing} and put them in {other}"), count=2),
}


def kind_of(goal: Goal) -> tuple[str, str, str]:
    """The name of a goal's kind, the type of its things, and that of its receptacle or lamp."""
    match goal:
        case LookAt(thing, lamp):
            return "look_at_obj_in_light", thing, lamp
        case PlaceTwo(thing, receptacle):
            return "pick_two_obj_and_place", thing, receptacle
        case Place(thing, receptacle, change):
            (name,) = (
                name
                for name, kind in KINDS.items()
                if kind.change == change and kind.count == 1 and not kind.under_lamp
            )
            return name, thing, receptacle
    raise TypeError(f"{type(goal).__name__} is none of the six kinds")
