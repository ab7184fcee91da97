"""Property checks of the contract in `envs/base.py`. Public: run them over an environment of your own.

    check_branchable("tsr/FrozenLake-v0")
    check_branchable("my_package.envs:Garden-v0", kwargs={"size": 3})
    check_branchable(lambda: Garden(size=3), noisy=True)

Snapshots are taken at several depths of each seed's episode. From each of them random responses, legal and unreadable,
are played, restored, replayed, played in a second environment made alike, and under noise of their own; all records
(observation, reward, flags, info, score, state key, budget, legal actions) must agree as the contract says. A fault
that changes nothing in what was played goes unnoticed.

NumPy's scalars are taken for plain ones, and messages for their text, as a run takes them.

`episodes` checks resets, budget, score, oracle and info; `restoring` get_state and set_state; `noise` reseed, so that
no branch sees the real episode's future; `actions` parsed_action; `state_keys` state_key; `playouts` play_randomly;
`subprocess_check` that another process gives the same episodes, in another order of seeds. `reported` reads what the
environment returns.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium

from tsr_lightning.envs.checker.actions import check_actions
from tsr_lightning.envs.checker.episodes import check_episode, leaked_score
from tsr_lightning.envs.checker.factory import BranchabilityError, resolve
from tsr_lightning.envs.checker.noise import check_noise, check_whole_key
from tsr_lightning.envs.checker.playouts import check_playouts
from tsr_lightning.envs.checker.recording import Recorder
from tsr_lightning.envs.checker.restoring import check_isolation, check_other_env, check_restore, check_state_record
from tsr_lightning.envs.checker.snapshots import take_snapshot
from tsr_lightning.envs.checker.state_keys import check_revisits, check_state_keys
from tsr_lightning.envs.checker.subprocess_check import check_in_subprocess
from tsr_lightning.errors import describe

__all__ = ["BranchabilityError", "BranchabilityReport", "check_branchable"]

DEPTHS = (0, 1, 3)  # turns into an episode at which snapshots are taken


@dataclass(frozen=True, slots=True)
class BranchabilityReport:
    """A report of the checks that were made."""

    environment: str
    seeds: tuple[int, ...]
    snapshots: int
    steps: int  # of the environment
    noisy: bool  # two keys gave two futures somewhere
    skipped: tuple[str, ...]  # checks that could not be made, and why


def check_branchable(
    env: str | gymnasium.Env[str, str] | Callable[[], Any],
    *,
    kwargs: dict[str, Any] | None = None,
    seeds: Iterable[int] = range(6),
    turns: int = 12,
    keys: int = 16,
    noisy: bool | None = None,
    responses: Sequence[str] = (),
) -> BranchabilityReport:
    """Raises a BranchabilityError if the environment breaks the contract.

    Args:
        env: a registered id, `package.module:Env-v0`, a function that makes the environment, or the environment. An
            object without a spec cannot be made again, here or in another process: those checks are skipped.
        kwargs: arguments of an environment given by id.
        seeds: of the episodes.
        turns: the most that are played from a snapshot.
        keys: branches of a snapshot whose noise is compared.
        noisy: whether the environment has noise. With None, it passes as noise-free if no two keys ever give two
            futures.
        responses: what to play where the environment has no `legal_actions`.
    """
    with closing(resolve(env, kwargs or {})) as factory:
        recorder = Recorder(factory.env, factory, turns, tuple(responses))
        try:
            return _check(recorder, tuple(seeds), keys, noisy)
        except BranchabilityError:
            raise
        except Exception as error:
            raise BranchabilityError(f"contract: a call raised {describe(error)} ({factory.name})") from error


def _check(recorder: Recorder, seeds: tuple[int, ...], keys: int, noisy: bool | None) -> BranchabilityReport:
    factory = recorder.factory
    episodes = [check_episode(recorder, seed) for seed in seeds]
    score = leaked_score(record for _, records in episodes for record in records)
    if score is not None:
        raise BranchabilityError(f"score: {score} is in the observation ({factory.name}, seeds {seeds})")
    taken = [take_snapshot(recorder, seed, depth) for seed in seeds for depth in DEPTHS]
    snapshots = [snapshot for snapshot in taken if snapshot is not None]
    differing = []
    for snapshot in snapshots:
        check_state_record(snapshot)
        # noise before restoring: it distinguishes a shared generator from a state that is not restored
        differing.append(check_noise(snapshot, keys))
        check_restore(snapshot)
        check_other_env(snapshot)
        check_isolation(snapshot)
    if noisy is True and not any(differing):
        raise BranchabilityError(
            f"reseed: it does nothing, {keys} keys gave one and the same future at each of {len(snapshots)} snapshots "
            f"of {factory.name}, which is declared noisy (seeds {seeds})"
        )
    if noisy is False and any(differing):
        snapshots[differing.index(True)].fail("reseed", "two keys gave two futures; the environment is declared exact")
    for snapshot in snapshots:
        check_whole_key(snapshot, keys)
    for snapshot in snapshots:  # last, since noise that survives a reseed looks like an incomplete key
        check_actions(snapshot)
        check_state_keys(snapshot)
        check_playouts(snapshot, any(differing))
        if not any(differing):
            check_revisits(snapshot)
    skipped = check_in_subprocess(factory, [(seed, played) for seed, (played, _) in zip(seeds, episodes, strict=True)])
    if factory.make is None:
        skipped = ["another environment: only this one object is given", *skipped]
    return BranchabilityReport(factory.name, seeds, len(snapshots), recorder.steps, any(differing), tuple(skipped))
