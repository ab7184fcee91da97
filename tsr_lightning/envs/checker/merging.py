"""Checks, before a run whose credit takes states with equal keys for one, that they go on alike."""

from collections.abc import Callable
from textwrap import shorten
from typing import TypeVar

from tsr_lightning.envs.base import Branchable, HasLegalActions
from tsr_lightning.envs.boundary import Call, CallFailed, final, name_of
from tsr_lightning.envs.checker.actions import check_actions
from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory
from tsr_lightning.envs.checker.noise import check_noise
from tsr_lightning.envs.checker.recording import Recorder
from tsr_lightning.envs.checker.snapshots import Snapshot, take_snapshot
from tsr_lightning.envs.checker.state_keys import check_revisits, check_state_keys
from tsr_lightning.errors import ConfigError

CheckedT = TypeVar("CheckedT")

SEEDS, DEPTHS, TURNS, KEYS = range(3), (0, 1), 6, 8
LONG = 12  # turns of the episodes in which states are revisited


def check_merging(env: Branchable, credit: str, takes_best: bool) -> None:
    """Refuses an environment whose state key says too little, or whose chance would make a maximum luck.

    It plays random legal actions. Of an environment that lists none nothing is seen, so it is refused where the best
    outcome stands for all.

    Args:
        env: reset and played.
        credit: that merges its states, for a message.
        takes_best: the best outcome stands for all.

    Raises:
        ConfigError: it says what to use.
    """
    name = name_of(env)
    if not isinstance(env, HasLegalActions):
        if takes_best:
            raise ConfigError(
                f"{credit} has a MaxBackup, which takes luck for skill where there is chance, and {name} has no "
                "legal_actions to look for it with: add that method, or use MeanBackup (--config credit/graph.yaml)"
            )
        return
    factory = EnvFactory(name, env, None, None)
    short, long = Recorder(env, factory, TURNS, ()), Recorder(env, factory, LONG, ())
    places = [(seed, depth) for seed in SEEDS for depth in DEPTHS]
    try:
        seen = [found for place in places if (found := _seen(short, *place)) is not None]
        if not any(noisy for _, noisy in seen):
            for seed in SEEDS:
                _checked(long, seed, 0, check_revisits, None)
    except BranchabilityError as error:
        problem = shorten(str(error), 140, placeholder="...")
        raise ConfigError(
            f"{credit} takes states with equal keys for one, and {name} breaks the contract: {problem}; correct it "
            "(check_branchable tells more), or use TreeCredit"
        ) from error
    if not seen:  # what it depends on fails: no run ends for that here
        return
    lists_some, noisy = (any(each) for each in zip(*seen, strict=True))
    if takes_best and not lists_some:
        raise ConfigError(
            f"{credit} has a MaxBackup, which takes luck for skill where there is chance, and legal_actions of {name} "
            "lists none to look for it with: let it return them, or use MeanBackup (--config credit/graph.yaml)"
        )
    if noisy and takes_best:
        raise ConfigError(
            f"{credit} has a MaxBackup, and equal actions in one state of {name} had two outcomes, of which the best "
            "is luck: use MeanBackup (--config credit/graph.yaml)"
        )


def _seen(recorder: Recorder, seed: int, depth: int) -> tuple[bool, bool] | None:
    """Returns whether a state lists legal actions, and whether its steps are noisy; None after an environment fault."""

    def check(snapshot: Snapshot) -> tuple[bool, bool]:
        noisy = check_noise(snapshot, KEYS)
        check_actions(snapshot)
        check_state_keys(snapshot)
        return bool(snapshot.record.legal), noisy

    return _checked(recorder, seed, depth, check, (False, False))


def _checked(
    recorder: Recorder, seed: int, depth: int, check: Callable[[Snapshot], CheckedT], ended: CheckedT
) -> CheckedT | None:
    """Takes a snapshot and checks it. Returns `ended` if the episode ends first, None after an environment fault."""

    def act() -> CheckedT | BranchabilityError:
        try:
            snapshot = take_snapshot(recorder, seed, depth)
            return ended if snapshot is None else check(snapshot)
        except BranchabilityError as error:
            return error

    try:
        found = final(Call(recorder.env, "step", seed), act)
    except CallFailed:
        return None
    if isinstance(found, BranchabilityError):
        raise found
    return found
