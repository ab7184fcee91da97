"""A moment comes back exactly: here, in an environment made alike, and whatever branches are played in between."""

from typing import Any

from tsr_lightning.envs.checker.causes import reject
from tsr_lightning.envs.checker.moments import Moment
from tsr_lightning.envs.checker.watching import StepExecutor, differing, first_difference, told


def check_standing(moment: Moment) -> None:
    """What a moment shows comes back with its state, and reseed changes nothing of it."""
    moment.back()
    if names := differing(moment.standing, moment.stage.stand()):
        reject(moment, names)
    moment.back(moment.key("standing"))
    names = differing(moment.standing, moment.stage.stand())
    if "score" in names:
        moment.fail("score", f"reseed changes it, so it knows the noise to come: {told(names)}")
    if "state_key" in names:
        moment.fail("state_key", f"reseed changes it, so it holds the noise: {told(names)}")
    if names:
        moment.fail("reseed", f"it changes more than the noise: {told(names)}")


def check_restore(moment: Moment) -> None:
    """Snapshot, roll A, restore, roll B, restore, roll A: exactly as before."""
    if names := first_difference(moment.future, moment.branch()):
        reject(moment, names)
    moment.back()
    moment.stage.wander(moment.key("other"))
    if names := first_difference(moment.future, moment.branch()):
        reject(moment, names)


def check_isolation(moment: Moment) -> None:
    """Branches between the steps of the real episode, here and in an environment made alike, change nothing in it."""
    stage = moment.stage
    twin = None if moment.source.make is None else StepExecutor(moment.source.make(), stage.turns, stage.name)

    def branch(aside: StepExecutor, state: Any, *name: int | str) -> None:
        aside.env.set_state(state)
        aside.env.reseed(moment.key("aside", *name))
        aside.wander(moment.key("aside answers", *name))

    moment.back()
    for turn, (action, expected) in enumerate(zip(moment.actions, moment.future, strict=True)):
        real = stage.env.get_state()
        branch(stage, real, turn, "here")
        stage.env.set_state(real)
        if twin is not None:
            branch(twin, real, turn, "there")  # and nothing is put back here
        if names := differing(expected, stage.step(action)):
            moment.fail("shared noise", f"playing branches changed the real episode: {told(names)}, at {action!r}")


def check_twin(moment: Moment) -> None:
    """A state goes on in another environment that was made alike."""
    if moment.source.make is None:
        return
    twin = StepExecutor(moment.source.make(), moment.stage.turns, moment.stage.name)
    try:
        twin.env.set_state(moment.state)
    except Exception as error:
        moment.fail("another environment", f"set_state raised {error!r} in one made alike, before any reset")
    names = differing(moment.standing, twin.stand()) or first_difference(moment.future, twin.play(moment.actions))
    if names:
        moment.fail("another environment", f"the state goes on otherwise in one made alike: {told(names)}")
