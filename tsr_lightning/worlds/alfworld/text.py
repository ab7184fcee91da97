"""Describes a state word by word as the original engine does (the article is always "a")."""

from collections.abc import Sequence

from tsr_lightning.worlds.alfworld.scene import Scene, bits
from tsr_lightning.worlds.alfworld.state import NOTHING, State

_WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see {seen}."

# by (clean, hot, cool, sliced), the first that fits
_CONDITIONS = (
    ((True, True, None, True), "hot and clean sliced"),
    ((True, None, True, True), "cool and clean sliced"),
    ((True, None, None, True), "clean sliced"),
    ((None, True, None, True), "hot sliced"),
    ((None, None, True, True), "cool sliced"),
    ((True, True, None, None), "hot and clean"),
    ((True, None, True, None), "cool and clean"),
    ((None, True, None, None), "hot"),
    ((True, None, None, None), "clean"),
    ((None, None, True, None), "cold"),
    ((None, None, None, True), "sliced"),
)


def opening(scene: Scene) -> str:
    """The first text: every receptacle, and the task."""
    return f"{_WELCOME}\n\n{_MIDDLE.format(seen=listed(scene.receptacles))}\n\nYour task is to: {scene.task}"


def listed(names: Sequence[str], article: str = "a ") -> str:
    """Names as a list, "nothing" if there are none."""
    given = [f"{article}{name}" for name in names]
    if len(given) < 2:
        return given[0] if given else "nothing"
    return f"{', '.join(given[:-1])}, and {given[-1]}"


def things(scene: Scene, mask: int) -> str:
    """A set of things as a list."""
    return listed([scene.things[thing] for thing in bits(mask)])


def describe(scene: Scene, state: State, receptacle: int) -> str:
    """A receptacle and what it lists."""
    name = scene.receptacles[receptacle]
    if not scene.openable >> receptacle & 1:
        return f"On the {name}, you see {things(scene, state.inside[receptacle])}."
    if not state.opened >> receptacle & 1:
        return f"The {name} is closed."
    return f"The {name} is open. In it, you see {things(scene, state.inside[receptacle])}."


def look_around(scene: Scene, state: State) -> str:
    """The receptacles here, and the things beside them: once taken out of one that stands here and not in it now.

    A thing is named once for each such receptacle.
    """
    here = scene.here[state.place]
    if not here:
        return _MIDDLE.format(seen="nothing")
    beside = sorted(
        thing
        for receptacle in here
        for thing in bits(state.lifted[receptacle] & ~state.inside[receptacle] & state.located[state.place])
    )
    facing = listed([scene.receptacles[receptacle] for receptacle in here], article="")
    return f"You are facing the {facing}. Next to it, you see {listed([scene.things[thing] for thing in beside])}."


def look_closely(scene: Scene, state: State, thing: int) -> str:
    """The thing in hand."""
    name = scene.things[thing]
    if scene.properties["isreceptacleobject"] >> thing & 1:
        return f"This is a normal {name}. In it, you see {things(scene, scene.inner[thing])}."
    sliced = state.sliced & scene.properties["sliceable"]
    has = tuple(bool(mask >> thing & 1) for mask in (state.clean, state.hot, state.cool, sliced))
    for wanted, words in _CONDITIONS:
        if all(want is None or want == got for want, got in zip(wanted, has, strict=True)):
            return f"This is a {words} {name}."
    return f"There's nothing special about {name}."


def inventory(scene: Scene, state: State) -> str:
    """Names the thing in hand."""
    if state.held == NOTHING:
        return "You are not carrying anything."
    return f"You are carrying: {listed([scene.things[state.held]])}."
