"""Proof, by property, that an environment can be branched. Public: run it over an environment of your own.

    check_branchable("tsr/FrozenLake-v0")
    check_branchable("my_package.envs:Garden-v0", kwargs={"size": 3})
    check_branchable(lambda: Garden(size=3), noisy=True)

Each seed's episode is stopped at several moments. At each of them random legal and unreadable answers are played, taken
back, played again, played in an environment made alike, and under noise of their own; all that shows (observation,
reward, flags, info, score, situation, budget, legal actions) must come out as the contract in `branchable.py` says.

One file for each family of properties: `episodes` (one seed, one episode; budget, score, info), `telling` (the score in
observations), `restoring` (a moment comes back; `causes` says why it does not), `noise` (reseed, clairvoyance),
`situations` (`state_key`), `elsewhere` (another process). A fault that shows in nothing that was played is not seen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium

from tsr_lightning.envs.checker.episodes import check_episode
from tsr_lightning.envs.checker.factory import BranchabilityError, find_source
from tsr_lightning.envs.checker.moments import stop
from tsr_lightning.envs.checker.noise import check_noise
from tsr_lightning.envs.checker.restoring import check_isolation, check_restore, check_standing, check_twin
from tsr_lightning.envs.checker.situations import check_situations
from tsr_lightning.envs.checker.subprocess_check import check_elsewhere
from tsr_lightning.envs.checker.telling import told_score
from tsr_lightning.envs.checker.watching import StepExecutor

__all__ = ["BranchabilityError", "BranchabilityReport", "check_branchable"]

DEPTHS = (0, 1, 3)  # turns into the episode at which it is stopped


@dataclass(frozen=True, slots=True)
class BranchabilityReport:
    """What was checked."""

    environment: str
    seeds: tuple[int, ...]
    moments: int  # at which an episode was stopped
    steps: int  # of the environment
    noisy: bool  # two keys gave two futures somewhere
    skipped: tuple[str, ...]  # properties that could not be checked, and why


def check_branchable(
    env: str | gymnasium.Env[str, str] | Callable[[], Any],
    *,
    kwargs: dict[str, Any] | None = None,
    seeds: Iterable[int] = range(6),
    turns: int = 12,
    keys: int = 16,
    noisy: bool | None = None,
) -> BranchabilityReport:
    """Raise a BranchabilityError if the environment breaks the contract.

    Args:
        env: a registered id, `package.module:Env-v0`, a function that makes the environment, or the environment. Of a
            mere object without a spec no second one can be made, here or in another process: those parts are skipped.
        kwargs: arguments of an environment given by id.
        seeds: of the episodes.
        turns: the most that are played from a moment.
        keys: branches of a moment whose noise is compared.
        noisy: whether chance plays a part. If said, it is held to it; unsaid, an environment of which no two keys ever
            give two futures passes for one without.
    """
    source = find_source(env, kwargs or {})
    seeds = tuple(seeds)
    stage = StepExecutor(source.env, turns, source.name)
    episodes = [(seed, *check_episode(source, stage, seed)) for seed in seeds]
    score = told_score(step for _, _, shown in episodes for step in shown)
    if score is not None:
        raise BranchabilityError(f"score: {score} stands in the observation ({source.name}, seeds {seeds})")
    stops = [stop(source, stage, seed, depth) for seed in seeds for depth in DEPTHS]
    moments = [moment for moment in stops if moment is not None]
    differing = []
    for moment in moments:
        check_standing(moment)
        # noise before restoring: it tells a generator that is shared from a state that is not brought back
        differing.append(check_noise(moment, keys))
        check_restore(moment)
        check_twin(moment)
        check_isolation(moment)
    if noisy is True and not any(differing):
        raise BranchabilityError(
            f"reseed: it does nothing, {keys} keys gave one and the same future at each of {len(moments)} moments "
            f"of {source.name}, which is said to be noisy (seeds {seeds})"
        )
    if noisy is False and any(differing):
        moments[differing.index(True)].fail("reseed", "two keys gave two futures; the environment is said to be exact")
    for moment in moments:  # last, for noise that outlives reseed looks like a key that leaves something out
        check_situations(moment)
    skipped = check_elsewhere(source, [(seed, actions) for seed, actions, _ in episodes])
    if source.make is None:
        skipped = ["another environment: only this one object is given", *skipped]
    return BranchabilityReport(source.name, seeds, len(moments), stage.steps, any(differing), tuple(skipped))
