"""The engine's actions: which commands are admissible in a state, what they change, and what the game says of it.

Each verb lists its choices, pairs of (thing, receptacle) of which either may be unused, as the preconditions of
ALFWorld's PDDL domain allow; the oddities of the original engine are kept (docs/alfworld.md lists them).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tsr_lightning.worlds.alfworld.scene import CLEANING, COOLING, HEATING, Scene, bits
from tsr_lightning.worlds.alfworld.state import NOTHING, State
from tsr_lightning.worlds.alfworld.text import describe, inventory, look_around, look_closely

NO_EFFECT = "Nothing happens."  # the answer to all that is not admissible

UNUSED = -1  # the part of a choice that a verb does not have
Choice = tuple[int, int]  # (thing, receptacle)


@dataclass(frozen=True)
class Verb:
    """A kind of action."""

    name: str
    choices: Callable[[Scene, State], Iterator[Choice]]
    command: Callable[[Scene, int, int], str]
    apply: Callable[[Scene, State, int, int], State]
    answer: Callable[[Scene, State, int, int], str]  # of the state after the action


class Action(NamedTuple):
    """A verb with its choice."""

    verb: Verb
    thing: int
    receptacle: int


def apply(scene: Scene, state: State, action: Action) -> State:
    """The state after an admissible action."""
    return action.verb.apply(scene, state, action.thing, action.receptacle)


def answer(scene: Scene, after: State, action: Action) -> str:
    """Returns the game's text after an action."""
    return action.verb.answer(scene, after, action.thing, action.receptacle)


@lru_cache(maxsize=4096)
def admissible(scene: Scene, state: State) -> Mapping[str, Action]:
    """The admissible actions by their commands, sorted as strings."""
    found = {
        verb.command(scene, thing, receptacle): Action(verb, thing, receptacle)
        for verb in VERBS
        for thing, receptacle in verb.choices(scene, state)
    }
    for command, receptacle in scene.ways[state.place]:
        found[command] = Action(GO, UNUSED, receptacle)
    return dict(sorted(found.items()))


# Choices


def _always(scene: Scene, state: State) -> Iterator[Choice]:
    yield UNUSED, UNUSED


def _where_helpful(scene: Scene, state: State) -> Iterator[Choice]:
    if scene.grammar.help is not None:
        yield UNUSED, UNUSED


def _ways(scene: Scene, state: State) -> Iterator[Choice]:
    yield from ((UNUSED, receptacle) for _, receptacle in scene.ways[state.place])


def _standing_here(scene: Scene, state: State) -> Iterator[Choice]:
    yield from ((UNUSED, receptacle) for receptacle in scene.here[state.place])


def _closed_here(scene: Scene, state: State) -> Iterator[Choice]:
    closed = scene.openable & ~state.opened
    yield from ((UNUSED, receptacle) for receptacle in scene.here[state.place] if closed >> receptacle & 1)


def _opened_here(scene: Scene, state: State) -> Iterator[Choice]:
    opened = scene.openable & state.opened
    yield from ((UNUSED, receptacle) for receptacle in scene.here[state.place] if opened >> receptacle & 1)


def _accessible_here(scene: Scene, state: State) -> Iterator[int]:
    closed = scene.openable & ~state.opened
    yield from (receptacle for receptacle in scene.here[state.place] if not closed >> receptacle & 1)


def _takeable(scene: Scene, state: State) -> Iterator[Choice]:
    if state.held == NOTHING:
        for receptacle in _accessible_here(scene, state):
            for thing in bits(state.inside[receptacle] & scene.properties["pickupable"]):
                yield thing, receptacle


def _puttable(scene: Scene, state: State) -> Iterator[Choice]:
    if state.held != NOTHING:
        for receptacle in _accessible_here(scene, state):
            if scene.accepted[receptacle] >> state.held & 1:
                yield state.held, receptacle


def _held(scene: Scene, state: State) -> Iterator[Choice]:
    if state.held != NOTHING:
        yield state.held, UNUSED


def _with_tool(needs: str, tools: tuple[str, ...]) -> Callable[[Scene, State], Iterator[Choice]]:
    def choices(scene: Scene, state: State) -> Iterator[Choice]:
        if state.held != NOTHING and scene.properties[needs] >> state.held & 1:
            for receptacle in scene.here[state.place]:
                if scene.receptacle_types[receptacle] in tools:
                    yield state.held, receptacle

    return choices


def _switchable(scene: Scene, state: State) -> Iterator[Choice]:
    for receptacle in scene.here[state.place]:
        for thing in bits(state.inside[receptacle] & scene.properties["toggleable"]):
            yield thing, receptacle


def _sliceable(scene: Scene, state: State) -> Iterator[Choice]:
    if state.held != NOTHING and scene.knives >> state.held & 1:
        for thing in bits(state.located[state.place] & scene.properties["sliceable"]):
            yield thing, state.held  # the second part is the knife


# Effects


def _unchanged(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state


def _go(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(place=scene.places[receptacle])


def _open(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(opened=state.opened | 1 << receptacle)


def _close(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(opened=state.opened & ~(1 << receptacle))


def _take(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    one = 1 << thing
    return state._replace(
        held=thing,
        inside=_changed(state.inside, receptacle, state.inside[receptacle] & ~one),
        located=_changed(state.located, state.place, state.located[state.place] & ~one),
        lifted=_changed(state.lifted, receptacle, state.lifted[receptacle] | one),
    )


def _put(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    one = 1 << thing
    return state._replace(
        held=NOTHING,
        inside=_changed(state.inside, receptacle, state.inside[receptacle] | one),
        located=_changed(state.located, state.place, state.located[state.place] | one),
    )


def _clean(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(clean=state.clean | 1 << thing)


def _heat(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(hot=state.hot | 1 << thing, cool=state.cool & ~(1 << thing))


def _cool(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(cool=state.cool | 1 << thing, hot=state.hot & ~(1 << thing))


def _use(scene: Scene, state: State, thing: int, receptacle: int) -> State:
    return state._replace(lit=state.lit | 1 << thing)


def _slice(scene: Scene, state: State, thing: int, knife: int) -> State:
    return state._replace(sliced=state.sliced | 1 << thing)


def _changed(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


# Texts


def _named(template: str) -> Callable[[Scene, int, int], str]:
    """A command or an answer with the names of thing and receptacle."""

    def text(scene: Scene, thing: int, receptacle: int) -> str:
        return template.format(
            thing=scene.things[thing] if thing != UNUSED else "",
            receptacle=scene.receptacles[receptacle] if receptacle != UNUSED else "",
        )

    return text


def _says(template: str) -> Callable[[Scene, State, int, int], str]:
    text = _named(template)
    return lambda scene, after, thing, receptacle: text(scene, thing, receptacle)


def _arrival(scene: Scene, after: State, thing: int, receptacle: int) -> str:
    at_place = scene.grammar.arrives_at_place
    where = scene.place_names[after.place] if at_place else scene.receptacles[receptacle]
    return f"You arrive at {where}. {describe(scene, after, receptacle)}"


def _opening(scene: Scene, after: State, thing: int, receptacle: int) -> str:
    return f"You open the {scene.receptacles[receptacle]}. {describe(scene, after, receptacle)}"


GO = Verb("go", _ways, _named("go to {receptacle}"), _go, _arrival)
OPEN = Verb("open", _closed_here, _named("open {receptacle}"), _open, _opening)
TAKE = Verb(
    "take",
    _takeable,
    _named("take {thing} from {receptacle}"),
    _take,
    _says("You pick up the {thing} from the {receptacle}."),
)
PUT = Verb(
    "put",
    _puttable,
    lambda scene, thing, receptacle: scene.grammar.put.format(
        thing=scene.things[thing], receptacle=scene.receptacles[receptacle]
    ),
    _put,
    lambda scene, after, thing, receptacle: scene.grammar.has_put.format(
        thing=scene.things[thing], receptacle=scene.receptacles[receptacle]
    ),
)
CLEAN, HEAT, COOL = (
    Verb(
        name,
        _with_tool(needs, tools),
        _named(f"{name} {{thing}} with {{receptacle}}"),
        apply_change,
        _says(f"You {name} the {{thing}} using the {{receptacle}}."),
    )
    for name, needs, tools, apply_change in (
        ("clean", "cleanable", CLEANING, _clean),
        ("heat", "heatable", HEATING, _heat),
        ("cool", "coolable", COOLING, _cool),
    )
)
USE = Verb("use", _switchable, _named("use {thing}"), _use, _says("You turn on the {thing}."))
_OTHERS = (
    Verb(
        "look", _always, _named("look"), _unchanged, lambda scene, after, thing, receptacle: look_around(scene, after)
    ),
    Verb(
        "inventory",
        _always,
        _named("inventory"),
        _unchanged,
        lambda scene, after, thing, receptacle: inventory(scene, after),
    ),
    Verb(
        "help",
        _where_helpful,
        _named("help"),
        _unchanged,
        lambda scene, after, thing, receptacle: scene.grammar.help or NO_EFFECT,
    ),
    Verb(
        "examine",
        _standing_here,
        _named("examine {receptacle}"),
        _unchanged,
        lambda scene, after, thing, receptacle: describe(scene, after, receptacle),
    ),
    Verb(
        "examine thing",
        _held,
        _named("examine {thing}"),
        _unchanged,
        lambda scene, after, thing, receptacle: look_closely(scene, after, thing),
    ),
    Verb("close", _opened_here, _named("close {receptacle}"), _close, _says("You close the {receptacle}.")),
    Verb(
        "slice",
        _sliceable,
        lambda scene, thing, knife: f"slice {scene.things[thing]} with {scene.things[knife]}",
        _slice,
        lambda scene, after, thing, knife: f"You sliced the {scene.things[thing]} with the {scene.things[knife]}.",
    ),
)
# GO is apart: its choices are listed once for each place, see `Scene.ways`
VERBS = (OPEN, TAKE, PUT, CLEAN, HEAT, COOL, USE, *_OTHERS)
