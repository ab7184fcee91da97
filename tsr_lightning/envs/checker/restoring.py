"""Checks of get_state and set_state: exact, in this environment and another one, whatever branches are in between.

`fail_restore` says why one is not exact: aliasing, counters, a stale cache or shared noise.
"""

import copy
from itertools import pairwise
from typing import Any, NoReturn

from tsr_lightning.envs.checker.recording import Recorder, StepRecord, differences, first_difference, listed
from tsr_lightning.envs.checker.snapshots import Snapshot
from tsr_lightning.rng import Key

ROUNDS = 8  # noise hardly ever repeats itself so often


def check_state_record(snapshot: Snapshot) -> None:
    """Score, key, budget and legal actions are restored with the state, and reseed changes none of them."""
    snapshot.restore()
    if found := differences(snapshot.record, snapshot.recorder.record_state()):
        fail_restore(snapshot, found)
    snapshot.restore(snapshot.key("standing"))
    found = differences(snapshot.record, snapshot.recorder.record_state())
    if "score" in found:
        snapshot.fail("score", f"reseed changes it, so it knows the noise to come: {listed(found)}")
    if "state_key" in found:
        snapshot.fail("state_key", f"reseed changes it, so it holds the noise: {listed(found)}")
    if found:
        snapshot.fail("reseed", f"it changes more than the noise: {listed(found)}")


def check_restore(snapshot: Snapshot) -> None:
    """Play A, restore, play B, restore, play A: exactly as before."""
    if found := first_difference(snapshot.future, snapshot.branch()):
        fail_restore(snapshot, found)
    snapshot.restore()
    snapshot.recorder.play_randomly(snapshot.key("other"))
    if found := first_difference(snapshot.future, snapshot.branch()):
        fail_restore(snapshot, found)


def check_isolation(snapshot: Snapshot) -> None:
    """Branches between the steps of the real episode, here and in another environment, change nothing in it."""
    recorder = snapshot.recorder
    twin = recorder.twin()

    def branch(aside: Recorder, state: Any, *name: int | str) -> None:
        aside.restore(state, snapshot.key("aside", *name))
        aside.play_randomly(snapshot.key("aside answers", *name))

    snapshot.restore()
    for turn, expected in enumerate(snapshot.future):
        real = recorder.env.get_state()
        branch(recorder, real, turn, "here")
        recorder.env.set_state(real)
        if twin is not None:
            branch(twin, real, turn, "there")  # and nothing is restored here
        if found := differences(expected, recorder.step(expected.response)):
            changed = f"playing branches changed the real episode: {listed(found)}, at {expected.response!r}"
            snapshot.fail("shared noise", changed)


def check_other_env(snapshot: Snapshot) -> None:
    """A state goes on the same in another environment that was made alike."""
    if (twin := snapshot.recorder.twin()) is None:
        return
    try:
        twin.env.set_state(snapshot.state)
    except Exception as error:
        snapshot.fail("another environment", f"set_state raised {error!r} in one made alike, before any reset")
    found = differences(snapshot.record, twin.record_state())
    if found := found or first_difference(snapshot.future, twin.replay(snapshot.responses)):
        snapshot.fail("another environment", f"the state goes on differently in one made alike: {listed(found)}")


def fail_restore(snapshot: Snapshot, found: dict[str, str], *keys: Key) -> NoReturn:
    """Fails with the cause, where equal responses, and equal keys if any, did not give equal futures."""
    detail = f"{listed(found)}, when {snapshot.responses} were played again"
    calls = "set_state and reseed with equal keys" if keys else "set_state"
    if _aliased(snapshot, keys):
        snapshot.fail("aliased state", f"later steps changed a state that get_state had returned: {detail}")
    if {"remaining", "truncated"} & found.keys() and not {"state_key", "terminated"} & found.keys():
        snapshot.fail("counters", f"a turn or step limit is not restored with the state: {detail}")
    futures = _repeated(snapshot, keys, snapshot.seed)
    if not any(first_difference(*pair) for pair in pairwise(futures[1:])):
        snapshot.fail("restore", f"{calls} does not restore the state exactly, perhaps for a stale cache: {detail}")
    others = [_repeated(snapshot, keys, snapshot.seed + shift) for shift in (1, 2, 3)]
    if any(first_difference(*pair) for other in others for pair in zip(futures, other, strict=True)):
        snapshot.fail(
            "shared noise",
            f"{calls} gave two futures, so there is noise from elsewhere, perhaps a generator that all branches share: "
            f"{detail}",
        )
    snapshot.fail("counters", f"something counts steps outside the state, so that {calls} gave two futures: {detail}")


def _aliased(snapshot: Snapshot, keys: tuple[Key, ...]) -> bool:
    """True if copies of the state always restore one future and the state itself never does, whatever came before."""
    copies, originals = list[list[StepRecord]](), list[list[StepRecord]]()
    for before in (keys, (snapshot.key("before"),)) * 2:
        snapshot.branch(*before, state=copy.deepcopy(snapshot.copied))
        copies.append(snapshot.branch(*keys, state=copy.deepcopy(snapshot.copied)))
        snapshot.branch(*before, state=copy.deepcopy(snapshot.copied))
        originals.append(snapshot.branch(*keys))
    if any(first_difference(copies[0], other) for other in copies):
        return False
    return all(first_difference(copies[0], other) for other in originals)


def _repeated(snapshot: Snapshot, keys: tuple[Key, ...], seed: int) -> list[list[StepRecord]]:
    """The future, ROUNDS times in a row, after a reset with `seed`, in another environment if one can be made.

    A stale cache gives the same future from the second time on; a step counter gives the same ones for every seed;
    noise gives others for each.
    """
    recorder = snapshot.recorder.twin() or snapshot.recorder
    recorder.env.reset(seed=seed)
    futures = list[list[StepRecord]]()
    for _ in range(ROUNDS):
        recorder.restore(copy.deepcopy(snapshot.copied), *keys)
        futures.append(recorder.replay(snapshot.responses))
    return futures
