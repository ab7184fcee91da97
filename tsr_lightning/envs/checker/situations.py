"""`state_key` tells situations apart where they differ, and only there: search prunes by it.

Compared are states of one episode with the same key and the same budget. What comes of the same answers under the same
key must be the same: rewards, ends, flags of info, legal answers and keys. Observations may tell the history and are
not compared; neither is the score where the returns so far differ, which it may count.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tsr_lightning.envs.checker.moments import Moment
from tsr_lightning.envs.checker.watching import UNREADABLE, Seen, Standing

ANSWERS = (6, 3)  # legal ones that are tried at the moment, and behind each of them
PAIRS = 3  # that are compared of the states with one key
SCRIPTS, LENGTH = 2, 3  # random answers that are played from both states of a pair
KEYS = 16  # that tell a difference from chance


@dataclass(frozen=True)
class _Place:
    """A state that was reached from a moment."""

    path: tuple[str, ...]
    state: Any
    standing: Standing
    gained: float  # the return since the moment
    shown: str  # the last observation


def check_situations(moment: Moment) -> None:
    """Fail if a step without effect changes the key, or if states with one key go on differently."""
    by_key: dict[tuple[Hashable, int], list[_Place]] = {}
    for place in _reached(moment):
        by_key.setdefault((place.standing.state_key, place.standing.remaining), []).append(place)
    for first, *others in by_key.values():
        # those that look otherwise are the likely ones
        for other in sorted(others, key=lambda place: place.shown == first.shown)[:PAIRS]:
            _compare(moment, first, other)


def step_problem(before: Standing, action: str, now: Seen) -> tuple[str, str] | None:
    """A step without effect leaves the situation as it is."""
    after = now.standing.state_key
    if now.info["action_is_effective"] or after == before.state_key:
        return None
    return "state_key", (
        f"it went from {before.state_key!r} to {after!r} at {action!r}, which info calls not effective: leave the "
        "turn and the budget out of it"
    )


def _reached(moment: Moment) -> list[_Place]:
    """The moment and the states one and two answers after it, all under one key; ended episodes are left out."""
    frontier = [_Place((), moment.state, moment.standing, 0.0, "")]
    places = list(frontier)
    for depth, count in enumerate(ANSWERS):
        reached = list[_Place]()
        for place in frontier:
            legal = place.standing.legal
            start = int(moment.key("answers", depth).uniform() * max(1, len(legal)))
            stride = max(1, len(legal) // count)
            for action in (*(legal[start:] + legal[:start])[::stride][:count], UNREADABLE):
                (seen,) = moment.branch(moment.key("reach", depth), state=place.state, actions=[action])
                if "action_is_effective" in seen.info and (problem := step_problem(place.standing, action, seen)):
                    moment.fail(*problem)
                if not seen.done:
                    state, gained = moment.stage.env.get_state(), place.gained + seen.reward
                    reached.append(_Place((*place.path, action), state, seen.standing, gained, seen.observation))
        places += reached
        frontier = reached
    return places


def _compare(moment: Moment, one: _Place, other: _Place) -> None:
    def fail(difference: str) -> None:
        moment.fail(
            "state_key",
            f"it is one and the same after {list(one.path)} and after {list(other.path)}, and {difference}: put into "
            "it what makes them differ, unless it is noise, which reseed should replace",
        )

    if set(one.standing.legal) != set(other.standing.legal):
        fail("the legal actions differ")
    if one.standing.score != other.standing.score and math.isclose(one.gained, other.gained, abs_tol=1e-9):
        fail(f"the score is {one.standing.score} and {other.standing.score}")
    for script in range(SCRIPTS):
        moment.stage.env.set_state(one.state)
        moment.stage.env.reseed(moment.key("onward", 0))
        actions, _ = moment.stage.wander(moment.key("script", script), LENGTH)
        difference = _apart(moment, one, other, actions, 0)
        if difference and not _by_chance(moment, one, other, actions):
            fail(f"{difference}, when {actions} are played from there under one key")


def _apart(moment: Moment, one: _Place, other: _Place, actions: Sequence[str], key: int) -> str:
    """What differs first, "" if nothing does. Where one is cut short, the budget decides what follows."""
    futures = [moment.branch(moment.key("onward", key), state=at.state, actions=actions) for at in (one, other)]
    for mine, theirs in zip(*futures, strict=False):
        if mine.truncated or theirs.truncated:
            break
        for name, a, b in zip(_NAMES, _outcome(mine), _outcome(theirs), strict=True):
            if a != b:
                return f"{name} is {a!r} and {b!r}"
    return ""


def _by_chance(moment: Moment, one: _Place, other: _Place, actions: Sequence[str]) -> bool:
    """Whether both states have an outcome in common that is not the only one: they draw their noise in another way."""
    outcomes = [
        {
            tuple(map(_outcome, moment.branch(moment.key("onward", key), state=place.state, actions=actions)))
            for key in range(KEYS)
        }
        for place in (one, other)
    ]
    return all(len(found) > 1 for found in outcomes) and bool(outcomes[0] & outcomes[1])


_NAMES = ("the reward", "terminated", "success", "action_is_valid", "action_is_effective", "the next key", "legal")


def _outcome(seen: Seen) -> tuple[Hashable, ...]:
    info = [seen.info.get(name) for name in ("success", "action_is_valid", "action_is_effective")]
    legal = () if seen.done else tuple(sorted(seen.standing.legal))
    return round(float(seen.reward), 9), seen.terminated, *info, seen.standing.state_key, legal
