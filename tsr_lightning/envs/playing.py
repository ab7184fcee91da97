"""Plays an environment before a run, for its text alone. A failure that repetition does not mend is one sentence."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle
from tsr_lightning.envs.boundary import Call, CallFailed, final, retried
from tsr_lightning.envs.closing import close, discard
from tsr_lightning.envs.make import find_spec
from tsr_lightning.envs.outcome import first_observation, flag, offered, one_text, texts
from tsr_lightning.envs.waiting import told
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message

_SHORT = 24  # characters of a response that is shown as an example, where there is one


class Opening(NamedTuple):
    """The beginning of an episode."""

    instructions: str
    messages: tuple[Message, ...]  # the tools first, if there are any


def check_first_reset(id: str, make: Callable[[], Branchable], retries: int = 0) -> None:
    """Makes an environment and resets it once: a bad value, such as that of a level file, shows only there.

    Args:
        id: of the environment.
        make: makes it.
        retries: how often either is tried again where what it depends on fails.

    Raises:
        ConfigError: its id or its arguments are refused.
        RunError: it cannot be made or reset.
    """
    with told(f"the module of {id}"):
        find_spec(id)  # a module that is missing, or whose own import fails, is no failure of the environment
    with told(f"{id} to be made"):
        env = retried(retries, partial(final, Call(id, "__init__"), make))
    with told(f"reset(seed=0) of {id}"):
        try:
            retried(retries, partial(final, Call(env, "reset", 0), partial(_open, env, 0)))
        except BaseException:
            discard(env)
            raise
        final(Call(env, "close", 0), partial(close, env))


def begin(env: Branchable, seed: int, key: Key, call_format: CallFormatName | None = None) -> Opening:
    """Begins an episode whose noise is drawn from `key`, and in which a policy calls tools in `call_format`, where the
    environment prefers no other."""

    def act() -> Opening:
        opening = _open(env, seed, call_format)
        env.reseed(key)
        return opening

    return final(Call(env, "reset", seed), act)


def advance(env: Branchable, seed: int, response: str) -> tuple[tuple[Message, ...], bool]:
    """Plays a response in the episode that `seed` began; the messages that follow, and whether it has ended."""

    def act() -> tuple[tuple[Message, ...], bool]:
        observation, _, terminated, truncated, _ = env.step(response)
        ended = flag("terminated", terminated) or flag("truncated", truncated)
        return texts(observation), ended

    return final(Call(env, "step", seed, response), act)


def some_response(env: Branchable, seed: int, key: Key) -> str:
    """A response as good as the environment can give, half of them random; "" where it can give none."""
    if isinstance(env, HasOracle):
        return final(Call(env, "oracle", seed), lambda: one_text("oracle()", env.oracle(0.5, key)))
    if isinstance(env, HasLegalActions):
        actions = _legal_actions(env, seed)
        return actions[key.bits() % len(actions)] if actions else ""
    return ""


def first_demonstration(
    env: Branchable,
    method: str,
    respond: Callable[[Branchable, Any, Key], str],
    retries: int = 0,
    call_format: CallFormatName | None = None,
) -> str:
    """A demonstrator's first response in the episode of `sample_observations`.

    Args:
        env: that is played.
        method: of the environment, which the demonstrator asks.
        respond: gives a response in a state, by a key.
        retries: how often it is tried again where what the environment depends on fails.
        call_format: as of `begin`.
    """
    key = Key(0).fold_in("first demonstration")

    def act() -> str:
        begin(env, 0, key, call_format)
        return final(Call(env, method, 0), lambda: one_text(method, respond(env, env.get_state(), key)))

    return retried(retries, act)


def valid_response(env: Branchable, call_format: CallFormatName | None = None) -> str | None:
    """A short response that can be played in the first state of episode 0, as `begin` begins it; None where the
    environment lists none, or where what it depends on fails: no run ends for an example."""
    if not isinstance(env, HasLegalActions):
        return None
    try:
        begin(env, 0, Key(0).fold_in("valid response"), call_format)
        actions = _legal_actions(env, 0)
    except CallFailed:
        return None
    return next((action for action in actions if len(action) <= _SHORT), min(actions, key=len, default=None))


def _legal_actions(env: HasLegalActions, seed: int) -> list[str]:
    return final(Call(env, "legal_actions", seed), lambda: [one_text("an action", one) for one in env.legal_actions()])


def _open(env: Branchable, seed: int, call_format: CallFormatName | None = None) -> Opening:
    observation = first_observation(env, seed, call_format)
    return Opening(one_text("instructions", env.instructions), (*offered(env), *texts(observation)))
