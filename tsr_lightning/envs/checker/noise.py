"""Checks of `reseed`: all noise after it comes from its key, so no branch sees the real episode's future."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from tsr_lightning.envs.checker.recording import UNREADABLE, StepRecord, differences, first_difference, listed
from tsr_lightning.envs.checker.restoring import fail_restore
from tsr_lightning.envs.checker.snapshots import Snapshot
from tsr_lightning.rng import Key

EVIDENCE = 3  # keys that must give another outcome before a response counts as noisy
LENGTH = 3  # responses of the futures that one key and several keys give
TRIES = 4  # branches played before one that must not change
MANY = 1024  # keys; noise that shows in 3 of 16 shows in at least one of so many

_Future = tuple[tuple[Hashable, bool], ...]


def check_noise(snapshot: Snapshot, count: int) -> bool:
    """Equal keys give equal futures, whatever noise there was before. Returns whether two keys gave two futures."""
    keys = [snapshot.key("noise", index) for index in range(count)]
    futures = [snapshot.branch(key) for key in keys]
    _check_repeatable(snapshot, keys, futures[0])
    if found := first_difference(futures[0], snapshot.branch(snapshot.key("old"), keys[0])):
        _check_repeatable(snapshot, keys, futures[0])  # if this passes, the old noise is the cause
        snapshot.fail("reseed", f"the old noise shows after it: {listed(found)}, when {snapshot.responses} were played")
    _check_nothing_drawn_in_advance(snapshot, keys)
    _check_effective(snapshot, keys, futures)
    return any(first_difference(futures[0], future) for future in futures[1:])


def _check_repeatable(snapshot: Snapshot, keys: Sequence[Key], future: Sequence[StepRecord]) -> None:
    """The first key gives its future again, whichever branch was played before."""
    for other in keys[:TRIES]:  # what a branch leaves behind may show after one and not after another
        snapshot.branch(other)
        if found := first_difference(future, snapshot.branch(keys[0])):
            fail_restore(snapshot, found, keys[0])


def _check_nothing_drawn_in_advance(snapshot: Snapshot, keys: Sequence[Key]) -> None:
    """After a step that was the same under two keys, a third key gives one future, whichever of them was before."""
    rest = snapshot.responses[1:]
    groups: list[tuple[StepRecord, list[StepRecord]]] = []  # of equal steps: the step, and the future
    for key in keys:
        (step,) = snapshot.branch(key, responses=snapshot.responses[:1])
        if step.done:
            continue
        future = snapshot.branch(snapshot.key("next"), state=snapshot.recorder.env.get_state(), responses=rest)
        expected = next((known for other, known in groups if not differences(other, step)), None)
        if expected is None:
            groups.append((step, future))
        elif found := first_difference(expected, future):
            _check_repeatable(snapshot, keys, snapshot.branch(keys[0]))
            snapshot.fail(
                "reseed",
                "the old noise shows after it, so a branch sees what the real episode has drawn in advance: "
                f"{listed(found)}, when {snapshot.responses} were played and reseed called after the first",
            )


def _check_effective(snapshot: Snapshot, keys: Sequence[Key], futures: Sequence[Sequence[StepRecord]]) -> None:
    """If a later reseed shows that a response is noisy, a reseed at the snapshot must show it too."""
    for place in (1, 2):  # responses between the two
        if any(len(future) <= place or _outcome(future[place]) != _outcome(futures[0][place]) for future in futures):
            break
        snapshot.branch(keys[0], responses=snapshot.responses[:place])
        later = snapshot.recorder.env.get_state()
        _compare_with_later(snapshot, keys, later, snapshot.responses[: place + 1], futures[0][place])
    # the same state, one unreadable response later
    if snapshot.responses[0] == UNREADABLE or any(_outcome(future[0]) != _outcome(futures[0][0]) for future in futures):
        return
    (step,) = snapshot.branch(keys[0], responses=[UNREADABLE])
    if not step.done and step.after.state_key == snapshot.record.state_key:
        later = snapshot.recorder.env.get_state()
        _compare_with_later(snapshot, keys, later, snapshot.responses[:1], futures[0][0])


def _compare_with_later(
    snapshot: Snapshot, keys: Sequence[Key], later: Any, responses: list[str], agreed: StepRecord
) -> None:
    """Fails if the last response has one outcome under keys of the snapshot, and several under keys of `later`."""
    outcomes = [_outcome(snapshot.branch(key, state=later, responses=responses[-1:])[-1]) for key in keys]
    if sum(outcome != _outcome(agreed) for outcome in outcomes) < EVIDENCE:
        return
    many = (snapshot.branch(snapshot.key("many", index), responses=responses)[-1] for index in range(MANY))
    if any(_outcome(step) != _outcome(agreed) for step in many):
        return
    snapshot.fail(
        "reseed",
        f"it has no effect here: {MANY} keys gave one outcome of {responses[-1]!r}, when {responses} were played, and "
        "keys given later gave several, so a branch from here sees the real future",
    )


def _outcome(step: StepRecord) -> tuple[Hashable, bool]:
    """Returns the part of an outcome that noise decides, the budget left out."""
    return step.after.state_key, step.terminated


def check_whole_key(snapshot: Snapshot, count: int) -> None:
    """One key for a future and one for each of its steps give the same futures.

    They do not where reseed keeps no more than a bit of the key, from which all noise follows.
    """
    responses = snapshot.responses[:LENGTH]

    def given_once(key: Key) -> _Future:
        return tuple(map(_outcome, snapshot.branch(key, responses=responses)))

    def given_before_each(key: Key) -> _Future:
        snapshot.restore()
        steps = list[StepRecord]()
        for place, response in enumerate(responses):
            snapshot.recorder.env.reseed(key.fold_in(place))
            steps += snapshot.recorder.replay([response])
            if steps[-1].done:
                break
        return tuple(map(_outcome, steps))

    for sampled, other in ((given_once, given_before_each), (given_before_each, given_once)):
        futures = Counter(sampled(snapshot.key("whole", index)) for index in range(count))
        for future, times in futures.items():
            if times >= EVIDENCE and all(other(snapshot.key("many", index)) != future for index in range(MANY)):
                snapshot.fail(
                    "reseed",
                    f"it keeps too little of its key: {times} of {count} gave a future of {responses} that {MANY} "
                    "others did not, where some were given once and some before each step",
                )
