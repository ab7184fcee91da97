"""Why a state is not restored exactly: aliasing, counters, a stale cache or shared noise."""

import copy
from itertools import pairwise
from typing import NoReturn

from tsr_lightning.envs.checker.recording import StepRecord, first_difference, listed
from tsr_lightning.envs.checker.snapshots import Snapshot
from tsr_lightning.rng import Key

ROUNDS = 8  # noise hardly ever repeats itself so often


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
    """Whether copies of the state always restore one future and the state itself never does, whatever came before."""
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
    recorder = snapshot.recorder
    if snapshot.factory.make is not None:
        recorder = recorder.like(snapshot.factory.make())
    recorder.env.reset(seed=seed)
    futures = list[list[StepRecord]]()
    for _ in range(ROUNDS):
        recorder.env.set_state(copy.deepcopy(snapshot.copied))
        for key in keys:
            recorder.env.reseed(key)
        futures.append(recorder.play(snapshot.responses))
    return futures
