"""Sample text of an environment: what a new model's vocabulary is made from, and how long prompts become."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

from tsr_lightning.envs.base import Branchable, PreparesInstances
from tsr_lightning.envs.boundary import Call, final, name_of, retried
from tsr_lightning.envs.playing import Opening, advance, begin, some_response
from tsr_lightning.envs.waiting import Waiting, told
from tsr_lightning.rng import Key, Stream
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message

_EPISODES = 64


def sample_texts(env: Branchable, retries: int = 0) -> Iterator[str]:
    """The instructions, and observations and responses of some episodes; always the same for the same environment.

    Of an environment with neither an oracle nor legal actions, only unreadable responses are played.

    Args:
        env: that is played.
        retries: how often an episode is played again where what the environment depends on fails.

    Raises:
        RunError: the environment failed.
    """
    instructions = set[str]()
    if isinstance(env, PreparesInstances):
        retried(retries, partial(final, Call(env, "prepare"), partial(env.prepare, range(_EPISODES))))
    with Waiting() as waiting:
        for episode in range(_EPISODES):
            with waiting.on(f"sample episode {episode} of {name_of(env)}"):
                opening, texts = retried(retries, partial(_episode, env, episode))
            if opening.instructions not in instructions:  # they may be the instance's own
                instructions.add(opening.instructions)
                yield opening.instructions
            yield from texts


def sample_observations(
    env: Branchable, turns: int, retries: int = 0, call_format: CallFormatName | None = None
) -> list[tuple[Message, ...]]:
    """The first messages of an episode that is always the same, instructions included, and those after so many turns of
    it.

    Args:
        env: that is played.
        turns: of the episode.
        retries: how often it is played again where what the environment depends on fails.
        call_format: as of `playing.begin`.

    Raises:
        RunError: the environment failed.
    """
    with told(f"the first observations of {name_of(env)}"):
        return retried(retries, partial(_observations, env, turns, call_format))


def _observations(env: Branchable, turns: int, call_format: CallFormatName | None) -> list[tuple[Message, ...]]:
    key = Key(0).fold_in("observations")
    opening = begin(env, 0, key, call_format)
    observations = [opening.messages]
    for turn in range(turns):
        messages, ended = advance(env, 0, some_response(env, 0, key.fold_in(Stream.ORACLE, turn)))
        if ended:
            break
        observations.append(messages)
    system = (Message("system", opening.instructions),) if opening.instructions else ()
    return [(*system, *messages) for messages in observations]


def _episode(env: Branchable, episode: int) -> tuple[Opening, Sequence[str]]:
    """The beginning of an episode, and all its texts but the instructions."""
    key = Key(episode).fold_in("sayings")
    opening = begin(env, episode, key)
    texts = [message.content for message in opening.messages]
    for turn in count():
        # every other episode begins with an unreadable response, so that warnings are among the texts
        response = some_response(env, episode, key.fold_in(Stream.ORACLE, turn)) if turn or episode % 2 else ""
        messages, ended = advance(env, episode, response)
        texts += [response, *(message.content for message in messages)]
        if ended:
            return opening, texts
    raise AssertionError("count() does not end")
