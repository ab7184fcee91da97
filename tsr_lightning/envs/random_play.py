"""Random play of legal actions in the environment alone: how soon it succeeds, if at all."""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasRandomPlay
from tsr_lightning.envs.boundary import Call, final, name_of
from tsr_lightning.envs.outcome import WithLegalActions
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key, Stream

_CHECKED = (4, 12)  # sequences of random actions that are played twice before a run, and their length


def play_randomly(env: WithLegalActions, state: Any, keys: Sequence[Key], horizon: int) -> list[int | None]:
    """See `HasRandomPlay`. An environment without it is stepped, and ends a sequence where its budget does."""
    env.set_state(state)
    if isinstance(env, HasRandomPlay):
        return env.play_randomly(keys, horizon)
    return [_steps_to_success(env, state, key, horizon) for key in keys]


def check_random_play(env: Branchable, user: str) -> None:
    """Refuses an environment that cannot be played at random, or whose chance is not drawn from the key of a reseed.

    Args:
        env: that is played.
        user: what plays it, for a message.
    """
    name = name_of(env)
    if not isinstance(env, HasLegalActions):
        raise ConfigError(
            f"{user} plays random legal actions, and {name} does not list any: add the method legal_actions, or use "
            "EnvironmentScore"
        )
    sequences, length = _CHECKED
    final(Call(env, "reset", 0), lambda: env.reset(seed=0))
    state = final(Call(env, "get_state", 0), env.get_state)
    if not final(Call(env, "legal_actions", 0), env.legal_actions):
        raise ConfigError(
            f"{user} plays random legal actions, and {name} lists none in its first state: let legal_actions return "
            "them, or use EnvironmentScore"
        )
    for number in range(sequences):
        trace = partial(_trace, env, state, Key(0).fold_in("random play", number), length)
        if final(Call(env, "step", 0), trace) != final(Call(env, "step", 0), trace):
            raise ConfigError(
                f"{user} plays {name} with draws of its own, and equal actions after equal reseeds ended differently: "
                "let reseed set all chance (check_branchable tells more), or use EnvironmentScore"
            )


def _trace(env: WithLegalActions, state: Any, key: Key, length: int) -> list[tuple[Hashable, float, bool]]:
    """The states that a sequence of random actions passes through."""
    env.set_state(state)
    env.reseed(key.fold_in(Stream.BRANCH))
    trace = []
    for step in range(length):
        actions = env.legal_actions()
        if not actions:
            break
        _, reward, terminated, truncated, _ = env.step(actions[int(key.uniform(step) * len(actions))])
        trace.append((env.state_key(), float(reward), bool(terminated)))
        if terminated or truncated:
            break
    return trace


def _steps_to_success(env: WithLegalActions, state: Any, key: Key, horizon: int) -> int | None:
    env.set_state(state)
    env.reseed(key.fold_in(Stream.BRANCH))
    for step in range(horizon):
        actions = env.legal_actions()
        if not actions:
            break
        _, _, terminated, truncated, info = env.step(actions[int(key.uniform(step) * len(actions))])
        if info["success"]:
            return step + 1
        if terminated or truncated:
            break
    return None
