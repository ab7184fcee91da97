"""What an environment says and is told: the text that a new model's vocabulary is made from."""

from collections.abc import Iterator

from tsr_lightning.envs.base import Branchable, HasOracle
from tsr_lightning.rng import Key, Stream

_EPISODES = 64


def sayings(env: Branchable) -> Iterator[str]:
    """The rules, and observations and responses of some episodes; always the same for the same environment."""
    yield env.instructions
    for episode in range(_EPISODES):
        key = Key(episode).fold_in("sayings")
        observation, _ = env.reset(seed=episode)
        env.reseed(key)
        ended = False
        turn = 0
        while not ended:
            yield observation
            # every other episode begins with nonsense, so that the warnings are said too
            response = _response(env, key.fold_in(Stream.ORACLE, turn)) if turn or episode % 2 else ""
            yield response
            observation, _, terminated, truncated, _ = env.step(response)
            ended = terminated or truncated
            turn += 1
        yield observation


def _response(env: Branchable, key: Key) -> str:
    if isinstance(env, HasOracle):
        return env.oracle(0.5, key)
    actions = env.legal_actions()
    return actions[key.bits() % len(actions)]
