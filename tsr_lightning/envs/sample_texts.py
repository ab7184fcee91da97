"""Sample text of an environment: what a new model's vocabulary is made from, and how long prompts become."""

from collections.abc import Iterator
from itertools import count

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle, Observation, PreparesInstances
from tsr_lightning.rng import Key, Stream
from tsr_lightning.trajectory import to_messages

_EPISODES = 64


def sample_texts(env: Branchable) -> Iterator[str]:
    """The instructions, and observations and responses of some episodes; always the same for the same environment.

    Of an environment with neither an oracle nor legal actions, only unreadable responses are played.
    """
    instructions = set[str]()
    if isinstance(env, PreparesInstances):
        env.prepare(range(_EPISODES))
    for episode in range(_EPISODES):
        key = Key(episode).fold_in("sayings")
        observation, _ = env.reset(seed=episode)
        if env.instructions not in instructions:  # they may be the instance's own
            instructions.add(env.instructions)
            yield env.instructions
        env.reseed(key)
        yield from (message.content for message in to_messages(observation))
        for turn in count():
            # every other episode begins with an unreadable response, so that warnings are among the texts
            response = _response(env, key.fold_in(Stream.ORACLE, turn)) if turn or episode % 2 else ""
            observation, _, terminated, truncated, _ = env.step(response)
            yield response
            yield from (message.content for message in to_messages(observation))
            if terminated or truncated:
                break


def sample_observations(env: Branchable, turns: int) -> Iterator[Observation]:
    """The first observation of an episode that is always the same, and those after so many turns of it."""
    key = Key(0).fold_in("observations")
    observation, _ = env.reset(seed=0)
    env.reseed(key)
    yield observation
    for turn in range(turns):
        observation, _, terminated, truncated, _ = env.step(_response(env, key.fold_in(Stream.ORACLE, turn)))
        if terminated or truncated:
            return
        yield observation


def _response(env: Branchable, key: Key) -> str:
    if isinstance(env, HasOracle):
        return env.oracle(0.5, key)
    if isinstance(env, HasLegalActions):
        actions = env.legal_actions()
        return actions[key.bits() % len(actions)]
    return ""
