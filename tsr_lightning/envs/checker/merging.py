"""Checks, before a run whose credit takes states with equal keys for one, that they go on alike."""

from textwrap import shorten

from tsr_lightning.envs.base import Branchable, HasLegalActions
from tsr_lightning.envs.boundary import name_of
from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory
from tsr_lightning.envs.checker.noise import check_noise
from tsr_lightning.envs.checker.recording import Recorder
from tsr_lightning.envs.checker.snapshots import take_snapshot
from tsr_lightning.envs.checker.state_keys import check_state_keys
from tsr_lightning.errors import ConfigError

SEEDS, DEPTHS, TURNS, KEYS = range(3), (0, 1), 6, 8


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
    lists_some = False
    recorder = Recorder(env, EnvFactory(name, env, None, None), TURNS, ())
    noisy = False
    try:
        for seed, depth in ((seed, depth) for seed in SEEDS for depth in DEPTHS):
            snapshot = take_snapshot(recorder, seed, depth)
            if snapshot is not None:
                lists_some = lists_some or bool(snapshot.record.legal)
                noisy = check_noise(snapshot, KEYS) or noisy
                check_state_keys(snapshot)
    except BranchabilityError as error:
        found = shorten(str(error), 140, placeholder="...")
        raise ConfigError(
            f"{credit} takes states with equal keys for one, and {name} breaks the contract: {found}; correct it "
            "(check_branchable tells more), or use TreeCredit"
        ) from error
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
