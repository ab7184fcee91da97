"""Lower bounds on the commands of a plan: every place is one command from every other, and hands hold one thing.

They are exact but for what it takes to get rid of a thing in hand, which counts as one command.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tsr_lightning.worlds.alfworld.scene import Scene
from tsr_lightning.worlds.alfworld.state import NOTHING, State

IMPOSSIBLE = 10**6  # more commands than any plan has

_IN_HAND = -1  # in place of the receptacle that a thing is taken from


class Taken(NamedTuple):
    """A way to have a thing in hand."""

    commands: int
    source: int  # the receptacle that it is taken from, or _IN_HAND
    place: int  # of the player then


def ways_to_take(scene: Scene, state: State, thing: int) -> list[Taken]:
    """For each receptacle that lists a thing, the commands until it is in hand."""
    if state.held == thing:
        return [Taken(0, _IN_HAND, state.place)]
    if not scene.properties["pickupable"] >> thing & 1:
        return []
    full = state.held != NOTHING
    return [
        Taken(full + (place != state.place) + is_closed(scene, state, source) + 1, source, place)
        for source, (mask, place) in enumerate(zip(state.inside, scene.places, strict=True))
        if mask >> thing & 1
    ]


def commands_to_place(scene: Scene, state: State, thing: int, targets: Sequence[int], tools: Sequence[int]) -> int:
    """Commands until a thing is listed in one of `targets`, and was at one of `tools` in hand if any are given."""
    placed = [target for target in targets if state.inside[target] >> thing & 1]
    if placed and not tools:
        return 0
    least = IMPOSSIBLE
    for taken in ways_to_take(scene, state, thing):
        stays = any(target != taken.source for target in placed)  # it is listed twice
        for tool in tools or (None,):
            commands, place = taken.commands, taken.place
            if tool is not None:
                commands += (scene.places[tool] != place) + 1
                place = scene.places[tool]
            if not stays:
                commands += _put(scene, state, thing, targets, taken.source, place)
            least = min(least, commands)
    return least


def commands_to_place_two(scene: Scene, state: State, things: Sequence[int], target: int) -> int:
    """Commands until two of these things are listed in `target`."""
    inside = [thing for thing in things if state.inside[target] >> thing & 1]
    if len(inside) >= 2:
        return 0
    outside = [thing for thing in things if thing not in inside]
    firsts = {thing: commands_to_place(scene, state, thing, (target,), ()) for thing in outside}
    if inside:
        return min(firsts.values(), default=IMPOSSIBLE)
    least = IMPOSSIBLE
    for first, commands in firsts.items():
        opened = {taken.source for taken in ways_to_take(scene, state, first)}
        for second in outside:
            if second != first and scene.accepted[target] >> second & 1:
                least = min(least, commands + _fetch_back(scene, state, second, target, opened))
    return least


def commands_to_light(scene: Scene, state: State, things: Sequence[int], stands: Sequence[tuple[int, int]]) -> int:
    """Commands until one of the things is in hand beside a lit lamp.

    Args:
        stands: (receptacle, lamp) of every lamp.
    """
    least = IMPOSSIBLE
    for thing in things:
        for taken in ways_to_take(scene, state, thing):
            for receptacle, lamp in stands:
                unlit = not state.lit >> lamp & 1
                least = min(least, taken.commands + (scene.places[receptacle] != taken.place) + unlit)
    return least


def is_closed(scene: Scene, state: State, receptacle: int) -> bool:
    """True if a receptacle must be opened before it can be used."""
    return bool((scene.openable & ~state.opened) >> receptacle & 1)


def _put(scene: Scene, state: State, thing: int, targets: Sequence[int], source: int, place: int) -> int:
    return min(
        (
            (scene.places[target] != place) + (is_closed(scene, state, target) and target != source) + 1
            for target in targets
            if scene.accepted[target] >> thing & 1
        ),
        default=IMPOSSIBLE,
    )


def _fetch_back(scene: Scene, state: State, thing: int, target: int, opened: set[int]) -> int:
    """Commands from the place of `target` and back, without opening what the first thing may have opened."""
    least = IMPOSSIBLE
    for source, mask in enumerate(state.inside):
        if mask >> thing & 1 and scene.properties["pickupable"] >> thing & 1:
            away = scene.places[source] != scene.places[target]
            closed = is_closed(scene, state, source) and source not in opened
            least = min(least, 2 * away + closed + 2)
    if state.held == thing:
        return 2  # it was put down for the other
    return least
