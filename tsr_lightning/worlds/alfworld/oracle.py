"""A shortest winning plan, by A* in the engine itself over the actions that can matter for the goal."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from tsr_lightning.worlds.alfworld.actions import (
    CLEAN,
    COOL,
    GO,
    HEAT,
    OPEN,
    PUT,
    TAKE,
    USE,
    Action,
    admissible,
    apply,
)
from tsr_lightning.worlds.alfworld.effort import IMPOSSIBLE
from tsr_lightning.worlds.alfworld.goals import Goal
from tsr_lightning.worlds.alfworld.level import Level
from tsr_lightning.worlds.alfworld.scene import Scene
from tsr_lightning.worlds.alfworld.state import NOTHING, State

_MOST_STATES = 20_000  # expanded before a goal counts as out of reach; the published games need a few hundred

Plan = tuple[str, ...]


def shortest_plan(scene: Scene, state: State, goal: Goal) -> Plan | None:
    """Commands that reach the goal, none if it is reached; None if there are none, or the search took too long."""
    order = count()  # among equal bounds the deepest first
    left = goal.commands_left(scene, state)
    if left >= IMPOSSIBLE:
        return None
    queue: list[tuple[int, int, int, State, Plan]] = [(left, left, next(order), state, ())]
    best = {state.key(): 0}
    for _ in range(_MOST_STATES):
        if not queue:
            return None
        _, _, _, node, plan = heappop(queue)
        held, total = goal.conditions(scene, node)
        if held == total:
            return plan
        if best[node.key()] < len(plan):
            continue
        for command, action in _relevant(scene, node, goal):
            after = apply(scene, node, action)
            key, cost = after.key(), len(plan) + 1
            if cost < best.get(key, IMPOSSIBLE):
                left = goal.commands_left(scene, after)
                if left < IMPOSSIBLE:
                    best[key] = cost
                    heappush(queue, (cost + left, left, next(order), after, (*plan, command)))
    return None


class Planner:
    """Plans of recent states: who follows a plan pays for it once.

    Args:
        capacity: states whose plans are kept.
    """

    def __init__(self, capacity: int = 8192) -> None:
        self._plans: OrderedDict[tuple[str, State], Plan | None] = OrderedDict()
        self._capacity = capacity

    def plan(self, level: Level, state: State) -> Plan | None:
        """Returns `shortest_plan`, and keeps the plans of the states that it leads through."""
        key = level.digest, state
        if key not in self._plans:
            found = shortest_plan(level.scene, state, level.goal)
            self._keep(level, state, found)
            for step, command in enumerate(found or ()):
                state = apply(level.scene, state, admissible(level.scene, state)[command])
                self._keep(level, state, (found or ())[step + 1 :])
        return self._plans[key]

    def _keep(self, level: Level, state: State, plan: Plan | None) -> None:
        self._plans[level.digest, state] = plan
        if len(self._plans) > self._capacity:
            self._plans.popitem(last=False)


def _relevant(scene: Scene, state: State, goal: Goal) -> Iterator[tuple[str, Action]]:
    """The actions of which some shortest plan is made: of those to one place, the first."""
    things, targets, tools, lamps = goal.relevant(scene)
    in_the_way = state.held != NOTHING and not things >> state.held & 1
    useful = {*targets, *tools, *(r for r, mask in enumerate(state.inside) if mask & (things | lamps))}
    places = set[int]()
    for command, action in admissible(scene, state).items():
        verb, thing, receptacle = action
        if verb is GO:
            place = scene.places[receptacle]
            if place in places or not (in_the_way or receptacle in useful):
                continue
            places.add(place)
            yield command, action
        elif verb is OPEN:
            if in_the_way or receptacle in useful:
                yield command, action
        elif verb is TAKE:
            if things >> thing & 1:
                yield command, action
        elif verb is PUT:
            if in_the_way or receptacle in targets:
                yield command, action
        elif verb in (CLEAN, HEAT, COOL, USE):
            yield command, action
