"""After `reseed`, chance comes from its key and from nothing else: no branch sees the real episode's future."""

from collections.abc import Hashable, Sequence
from typing import Any

from tsr_lightning.envs.checker.causes import reject
from tsr_lightning.envs.checker.moments import Moment
from tsr_lightning.envs.checker.watching import UNREADABLE, Seen, differing, first_difference, told
from tsr_lightning.rng import Key

EVIDENCE = 3  # keys that must give another outcome before chance is said to play a part
TRIES = 4  # branches that are played before one that must not change
MANY = 1024  # keys; chance that shows in 3 of 16 shows in one of so many


def check_noise(moment: Moment, count: int) -> bool:
    """Equal keys, equal futures, whatever noise was there before. Returns whether two keys gave two futures."""
    keys = [moment.key("noise", index) for index in range(count)]
    futures = [moment.branch(key) for key in keys]
    _demand_one_future(moment, keys, futures[0])
    if names := first_difference(futures[0], moment.branch(moment.key("old"), keys[0])):
        _demand_one_future(moment, keys, futures[0])  # else it is not the old noise that shows
        moment.fail("reseed", f"the noise of before shows after it: {told(names)}, when {moment.actions} were played")
    _check_nothing_drawn_ahead(moment, keys)
    _check_heeded(moment, keys, futures)
    return any(first_difference(futures[0], future) for future in futures[1:])


def _demand_one_future(moment: Moment, keys: Sequence[Key], future: Sequence[Seen]) -> None:
    """The first key's future, whichever branch was played before."""
    for other in keys[:TRIES]:  # what a branch leaves behind may show after one and not after another
        moment.branch(other)
        if names := first_difference(future, moment.branch(keys[0])):
            reject(moment, names, keys[0])


def _check_nothing_drawn_ahead(moment: Moment, keys: Sequence[Key]) -> None:
    """After a step that looked the same under two keys, a third key gives one future, whichever of them was before."""
    ahead = moment.actions[1:]
    alike: list[tuple[Seen, list[Seen]]] = []
    for key in keys:
        moment.back(key)
        (seen,) = moment.stage.play(moment.actions[:1])
        if seen.done:
            continue
        future = moment.branch(moment.key("next"), state=moment.stage.env.get_state(), actions=ahead)
        for other, expected in alike:
            if differing(other, seen):
                continue
            if names := first_difference(expected, future):
                _demand_one_future(moment, keys, moment.branch(keys[0]))
                moment.fail(
                    "reseed",
                    "the noise of before shows after it, so a branch sees what the real episode draws in advance: "
                    f"{told(names)}, when {moment.actions} were played and reseed called behind the first",
                )
            break
        else:
            alike.append((seen, future))


def _check_heeded(moment: Moment, keys: Sequence[Key], futures: Sequence[Sequence[Seen]]) -> None:
    """Where reseeding later shows that chance plays a part in an answer, reseeding here must show it too."""
    for place in (1, 2):  # the answers before are played between the two
        if any(len(future) <= place for future in futures):
            break
        if len({_outcome(step) for future in futures for step in future[place : place + 1]}) > 1:
            break
        moment.back(keys[0])
        moment.stage.play(moment.actions[:place])
        _demand_heed(moment, keys, moment.stage.env.get_state(), moment.actions[: place + 1], futures[0][place])
    # the same situation, one unreadable answer later
    if moment.actions[0] == UNREADABLE or len({_outcome(future[0]) for future in futures}) > 1:
        return
    moment.back(keys[0])
    (seen,) = moment.stage.play([UNREADABLE])
    if not seen.done and seen.standing.state_key == moment.standing.state_key:
        _demand_heed(moment, keys, moment.stage.env.get_state(), moment.actions[:1], futures[0][0])


def _demand_heed(moment: Moment, keys: Sequence[Key], later: Any, actions: list[str], agreed: Seen) -> None:
    """Fail if the last of `actions` gives keys of this moment one outcome, and keys of a `later` state several."""
    outcomes = [_outcome(moment.branch(key, state=later, actions=actions[-1:])[-1]) for key in keys]
    if sum(outcome != _outcome(agreed) for outcome in outcomes) < EVIDENCE:
        return
    for index in range(MANY):
        if _outcome(moment.branch(moment.key("many", index), actions=actions)[-1]) != _outcome(agreed):
            return
    moment.fail(
        "reseed",
        f"it is not heeded here: {MANY} keys gave one outcome of {actions[-1]!r}, when {actions} were played, and keys "
        "given later gave several, so a branch from here sees the real future",
    )


def _outcome(seen: Seen) -> tuple[Hashable, bool]:
    """What chance decides, the budget left out."""
    return seen.standing.state_key, seen.terminated
