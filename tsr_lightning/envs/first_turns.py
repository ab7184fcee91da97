"""Plays the first turns of an episode twice before a run: a branch must not change the state that it began in."""

from functools import partial

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.boundary import Call, CallFailed, final, name_of
from tsr_lightning.envs.outcome import Outcome, play
from tsr_lightning.envs.playing import begin, some_response
from tsr_lightning.envs.waiting import told
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

_TURNS = 2
_KEY = Key(0).fold_in("first turns")


def check_first_turns(env: Branchable) -> None:
    """Refuses an environment whose first turns, played from one restored state and one key, come out in two ways.

    What it depends on may fail: no run ends for that here. `check_branchable` compares far more.

    Raises:
        ConfigError: two outcomes differ.
        RunError: the environment's program is wrong.
    """
    try:
        with told(f"the first turns of {name_of(env)}"):
            _check(env)
    except CallFailed:
        return


def _check(env: Branchable) -> None:
    begin(env, 0, _KEY)
    state = final(Call(env, "get_state", 0), env.get_state)
    response = some_response(env, 0, _KEY)
    outcomes = [_played(env, state, response)]
    while len(outcomes) < _TURNS and not (outcomes[-1].terminated or outcomes[-1].truncated):
        outcomes.append(_played(env, outcomes[-1].state, response))
    again = _played(env, state, response)
    for name, before, after in zip(Outcome._fields, outcomes[0], again, strict=True):
        if name == "state" or before == after:  # a state may be equal to itself alone
            continue
        raise ConfigError(
            f"data.env is {name_of(env)}, whose set_state and reseed do not bring the first state back: {response!r} "
            f"gave {name} {before!r}, and after another turn {after!r}; keep all of an episode in get_state, immutable "
            "(check_branchable tells more)"
        )


def _played(env: Branchable, state: object, response: str) -> Outcome:
    return final(Call(env, "step", 0, response), partial(play, env, state, _KEY, response, scored=False))
