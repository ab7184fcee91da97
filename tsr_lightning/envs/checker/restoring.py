"""Checks of get_state and set_state: exact, in this environment and another one, whatever branches are in between."""

from typing import Any

from tsr_lightning.envs.checker.diagnosis import fail_restore
from tsr_lightning.envs.checker.recording import Recorder, differences, first_difference, listed
from tsr_lightning.envs.checker.snapshots import Snapshot


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
    twin = None if snapshot.factory.make is None else recorder.like(snapshot.factory.make())

    def branch(aside: Recorder, state: Any, *name: int | str) -> None:
        aside.env.set_state(state)
        aside.env.reseed(snapshot.key("aside", *name))
        aside.play_randomly(snapshot.key("aside answers", *name))

    snapshot.restore()
    for turn, (response, expected) in enumerate(zip(snapshot.responses, snapshot.future, strict=True)):
        real = recorder.env.get_state()
        branch(recorder, real, turn, "here")
        recorder.env.set_state(real)
        if twin is not None:
            branch(twin, real, turn, "there")  # and nothing is restored here
        if found := differences(expected, recorder.step(response)):
            snapshot.fail(
                "shared noise", f"playing branches changed the real episode: {listed(found)}, at {response!r}"
            )


def check_other_env(snapshot: Snapshot) -> None:
    """A state goes on the same in another environment that was made alike."""
    if snapshot.factory.make is None:
        return
    twin = snapshot.recorder.like(snapshot.factory.make())
    try:
        twin.env.set_state(snapshot.state)
    except Exception as error:
        snapshot.fail("another environment", f"set_state raised {error!r} in one made alike, before any reset")
    found = differences(snapshot.record, twin.record_state())
    found = found or first_difference(snapshot.future, twin.play(snapshot.responses))
    if found:
        snapshot.fail("another environment", f"the state goes on differently in one made alike: {listed(found)}")
