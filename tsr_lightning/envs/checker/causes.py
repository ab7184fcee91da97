"""Diagnoses why a moment is not restored exactly: aliasing, counters, a stale cache or shared noise."""

import copy
from itertools import pairwise
from typing import NoReturn

from tsr_lightning.envs.checker.moments import Moment
from tsr_lightning.envs.checker.watching import Seen, StepExecutor, first_difference, told
from tsr_lightning.rng import Key

ROUNDS = 8  # chance repeats itself by luck, but hardly this often


def reject(moment: Moment, names: dict[str, str], *keys: Key) -> NoReturn:
    """Fail with what is wrong, where equal actions, and equal keys if any, did not give an equal future."""
    what = f"{told(names)}, when {moment.actions} were played again"
    under = "set_state and reseed with equal keys" if keys else "set_state"
    if _aliased(moment, keys):
        moment.fail("aliased state", f"later steps changed a state that get_state had returned: {what}")
    if {"remaining", "truncated"} & names.keys() and not {"state_key", "terminated"} & names.keys():
        moment.fail("counters", f"a turn or step limit is not restored with the state: {what}")
    futures = _repeated(moment, keys, moment.seed)
    if not any(first_difference(*pair) for pair in pairwise(futures[1:])):
        moment.fail("restore", f"{under} does not bring a moment back exactly, perhaps for a cache gone stale: {what}")
    others = [_repeated(moment, keys, moment.seed + shift) for shift in (1, 2, 3)]
    if any(first_difference(*pair) for other in others for pair in zip(futures, other, strict=True)):
        moment.fail(
            "shared noise",
            f"{under} gave two futures, so chance comes from somewhere else, perhaps a generator that all branches "
            f"share: {what}",
        )
    moment.fail("counters", f"something counts the steps outside the state, so that {under} gave two futures: {what}")


def _aliased(moment: Moment, keys: tuple[Key, ...]) -> bool:
    """Whether copies of the state always bring one future back and the state itself never does, whatever was before."""
    copies, originals = list[list[Seen]](), list[list[Seen]]()
    for before in (keys, (moment.key("before"),)) * 2:
        moment.branch(*before, state=copy.deepcopy(moment.copied))
        copies.append(moment.branch(*keys, state=copy.deepcopy(moment.copied)))
        moment.branch(*before, state=copy.deepcopy(moment.copied))
        originals.append(moment.branch(*keys))
    if any(first_difference(copies[0], other) for other in copies):
        return False
    return all(first_difference(copies[0], other) for other in originals)


def _repeated(moment: Moment, keys: tuple[Key, ...], seed: int) -> list[list[Seen]]:
    """The moment's future, ROUNDS times in a row, after a reset with `seed` of another environment, if one can be made.

    What a cache spoils is the same from the second time on; what counts steps makes the same of every seed; chance
    makes another of each.
    """
    stage = moment.stage
    if moment.source.make is not None:
        stage = StepExecutor(moment.source.make(), stage.turns, stage.name)
    stage.env.reset(seed=seed)
    futures = list[list[Seen]]()
    for _ in range(ROUNDS):
        stage.env.set_state(copy.deepcopy(moment.copied))
        for key in keys:
            stage.env.reseed(key)
        futures.append(stage.play(moment.actions))
    return futures
