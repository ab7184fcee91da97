"""How far a state is from solved, without solving it: push distances, dead squares, deadlocks, and the score.

A push distance is exact for a lone box: it considers the walls, the room that the player needs behind the box, and the
way there. So with one box a state scores 0 if and only if it is lost. With several, boxes that block each other are
recognised only as freeze deadlocks; every state that scores 0 is still lost.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from tsr_lightning.envs.sokoban.board import Boxes, Layout, floor, spread, waves

WALK_WEIGHT = 0.01  # of a push; walks are clipped below 1 / WALK_WEIGHT steps, so a push outweighs any walk
_LONGEST_WALK = 99

# by region of the player (a bit mask of the cells that connect without moving the box), where the box can be pushed to
# the target from: the fewest pushes
Sides = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Distances:
    """Push distances of a layout without boxes."""

    pushes: tuple[dict[int, Sides], ...]  # by target (in the layout's order), then by the box's cell
    dead: frozenset[int]  # cells from which a box reaches no target
    span: int  # above any sum of push distances and a walk, so that 1 - cost / span stays within (0, 1)
    open_cells: int  # the floor as a bit mask


@lru_cache(maxsize=512)
def distances(layout: Layout) -> Distances:
    """The push distances of a layout, by reverse play of one box from each target."""
    open_cells = sum(1 << cell for cell in floor(layout))
    regions = {cell: _regions(layout, open_cells, cell) for cell in floor(layout)}
    pushes = tuple(_pushes_to(layout, regions, target) for target in layout.targets)
    alive = {cell for table in pushes for cell in table}
    farthest = max((pushes for table in pushes for sides in table.values() for _, pushes in sides), default=0)
    return Distances(pushes, frozenset(floor(layout)) - alive, 1 + farthest * len(layout.targets), open_cells)


def _regions(layout: Layout, open_cells: int, box: int) -> tuple[int, ...]:
    """The player's regions next to a lone box: bit masks of cells that connect without moving it."""
    free = open_cells & ~(1 << box)
    found: list[int] = []
    for step in layout.steps:
        seed = 1 << (box + step) & free
        if seed and not any(seed & region for region in found):
            found.append(spread(seed, free, layout.cols))
    return tuple(found)


def _pushes_to(layout: Layout, regions: dict[int, tuple[int, ...]], target: int) -> dict[int, Sides]:
    """Breadth-first search in reverse over (cell of the box, region of the player)."""
    best = {(target, region): 0 for region in regions[target]}
    queue = deque(best)
    while queue:
        box, region = queue.popleft()
        for step in layout.steps:
            origin, player = box - step, box - 2 * step  # before the push; after it, the player stands on origin
            if not region >> origin & 1 or player in layout.walls:
                continue
            earlier = next(mask for mask in regions[origin] if mask >> player & 1)
            if (origin, earlier) not in best:
                best[origin, earlier] = best[box, region] + 1
                queue.append((origin, earlier))
    table: dict[int, list[tuple[int, int]]] = {}
    for (box, region), pushes in best.items():
        table.setdefault(box, []).append((region, pushes))
    return {box: tuple(sides) for box, sides in table.items()}


def pushes_left(table: dict[int, Sides], box: int, player: int) -> int | None:
    """The fewest pushes of a lone box to the table's target; None if it cannot get there."""
    for region, pushes in table.get(box, ()):
        if region >> player & 1:
            return pushes
    return None


def matching(known: Distances, player: int, boxes: Boxes) -> tuple[int, Boxes] | None:
    """The fewest pushes that could bring each box to a target of its own, and the target's index for each box.

    A lower bound on the pushes of any solution; None if a box cannot have a target of its own: the state is lost.
    """
    # the cheapest assignment of the first boxes, by the set of targets taken (a bit mask)
    choices: dict[int, tuple[int, Boxes]] = {0: (0, ())}
    for box in boxes:
        further: dict[int, tuple[int, Boxes]] = {}
        for index, table in enumerate(known.pushes):
            pushes = pushes_left(table, box, player)
            if pushes is None:
                continue
            for taken, (cost, chosen) in choices.items():
                if taken >> index & 1:
                    continue
                key = taken | 1 << index
                if key not in further or cost + pushes < further[key][0]:
                    further[key] = (cost + pushes, (*chosen, index))
        choices = further
    return next(iter(choices.values()), None)


def frozen(layout: Layout, dead: frozenset[int], boxes: Boxes) -> bool:
    """True if a box off its target can never be moved again, except onto a dead square."""
    return any(box not in layout.targets and _stuck(layout, dead, boxes, box, frozenset()) for box in boxes)


def _stuck(layout: Layout, dead: frozenset[int], boxes: Boxes, box: int, held: frozenset[int]) -> bool:
    """True if `box` can move along neither axis while the boxes `held` stay."""
    held = held | {box}  # to its neighbours, which are checked next, it is a wall

    def blocks(cell: int) -> bool:
        if cell in layout.walls or cell in held:
            return True
        return cell in boxes and _stuck(layout, dead, boxes, cell, held)

    for step in (layout.cols, 1):
        one, other = box - step, box + step
        if not ((one in dead and other in dead) or blocks(one) or blocks(other)):
            return False
    return True


def walk(layout: Layout, open_cells: int, player: int, boxes: Boxes, goals: int) -> int | None:
    """Steps of the player to the nearest of `goals` (a bit mask) without moving a box; None if there is no path."""
    free = open_cells
    for box in boxes:
        free &= ~(1 << box)
    for steps, wave in enumerate(waves(1 << player, free, layout.cols)):
        if wave & goals:
            return steps
    return None


def _useful_sides(layout: Layout, known: Distances, player: int, boxes: Boxes, chosen: Boxes) -> int:
    """The cells, as a bit mask, from which a push brings a box closer to its target of the matching."""
    sides = 0
    for box, index in zip(boxes, chosen, strict=True):
        table = known.pushes[index]
        now = pushes_left(table, box, player)
        for step in layout.steps:
            behind, ahead = box - step, box + step
            if behind in layout.walls or ahead in layout.walls or ahead in boxes:
                continue
            then = pushes_left(table, ahead, box)
            if now is not None and then is not None and then < now:
                sides |= 1 << behind
    return sides


def score(layout: Layout, player: int, boxes: Boxes) -> float:
    """1 when solved, 0 when known to be lost, and otherwise higher for fewer pushes left, then for a shorter walk.

    1 - (pushes of the best matching + WALK_WEIGHT * walk to the nearest useful side of a box) / span, where `span` is
    a constant of the layout. Without the walk, going round a box would count as no progress.
    """
    if boxes == layout.targets:
        return 1.0
    known = distances(layout)
    matched = matching(known, player, boxes)
    if matched is None or frozen(layout, known.dead, boxes):
        return 0.0
    pushes, chosen = matched
    steps = walk(layout, known.open_cells, player, boxes, _useful_sides(layout, known, player, boxes, chosen))
    return 1.0 - (pushes + WALK_WEIGHT * min(_LONGEST_WALK if steps is None else steps, _LONGEST_WALK)) / known.span
