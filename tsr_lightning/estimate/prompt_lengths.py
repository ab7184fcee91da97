"""Measures the lengths of an environment's prompts on a few episodes, which are played here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from statistics import fmean

from transformers import PreTrainedTokenizerFast

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.boundary import name_of, retried
from tsr_lightning.envs.playing import advance, begin, some_response
from tsr_lightning.envs.waiting import told
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.plain import plain_encoder
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Message, Turn

TEMPLATE_TOKENS = 10  # around a message and before the response to it: ChatML's, where there is no tokenizer
MOST_TURNS = 200


@dataclass(frozen=True)
class TokenCounter:
    """Counts the tokens of messages.

    Args:
        text: counts those of a text.
        template: what the chat template puts around a message and before the response to it.
        around_system: what it puts around a system message, and at the beginning of a conversation.
        without_system: what it begins a conversation with that has no system message, such as one of its own.
    """

    text: Callable[[str], int]
    template: int
    around_system: int
    without_system: int

    def system(self, instructions: str) -> int:
        """Tokens of a conversation's beginning; instructions are "" where there is no system message."""
        return self.around_system + self.text(instructions) if instructions else self.without_system

    def messages(self, messages: Sequence[Message]) -> int:
        return self.template + sum(self.text(message.content) for message in messages)


def counter_of(
    tokenizer: PreTrainedTokenizerFast | None, characters_per_token: float, spec: PolicySpec | None = None
) -> TokenCounter:
    """By the tokenizer and the policy's prompts, or, where there is no tokenizer, by characters."""
    if tokenizer is None:
        return TokenCounter(lambda text: round(len(text) / characters_per_token), TEMPLATE_TOKENS, TEMPLATE_TOKENS, 0)
    chat, encode = Chat(tokenizer) if spec is None else Chat.of(spec, tokenizer), plain_encoder(tokenizer)
    system, user = Message("system", "x"), Message("user", "x")
    first, response = chat.prompt((), (user,)), encode("x")
    x, alone = len(response), len(first)
    past = Turn(first, response, (0.0,) * x, False, (user,), "x", 0.0, True, True, "x")
    template = max(0, len(chat.prompt((past,), (user,))) - alone - 2 * x)
    around = len(chat.prompt((), (system, user))) - template - 2 * x
    return TokenCounter(lambda text: len(encode(text)), template, max(0, around), max(0, alone - template - x))


@dataclass(frozen=True)
class EpisodeTokens:
    """Tokens of an episode's messages, without responses."""

    system: int
    messages: tuple[float, ...]  # [T] of each turn, the template's own included

    @property
    def turns(self) -> int:
        return len(self.messages)

    def first(self, turns: int) -> "EpisodeTokens":
        """Returns the first turns of the episode."""
        return EpisodeTokens(self.system, self.messages[:turns])


def measure(env: Branchable, counter: TokenCounter, seeds: Sequence[int], retries: int = 0) -> list[EpisodeTokens]:
    """Episodes of these seeds, each played twice: by unreadable responses, which waste every turn, and by responses
    as good as the environment can give, half of them random. One that fails is played again up to `retries` times."""
    return [retried(retries, partial(_play, env, counter, seed, plays)) for seed in seeds for plays in (False, True)]


def longest(episodes: Sequence[EpisodeTokens]) -> EpisodeTokens:
    """The most tokens of every turn, of the episodes that have it."""
    columns = zip_longest(*(episode.messages for episode in episodes), fillvalue=0.0)
    return EpisodeTokens(max(episode.system for episode in episodes), tuple(map(max, columns)))


def average(episodes: Sequence[EpisodeTokens]) -> EpisodeTokens:
    """The mean tokens of every turn, of the episodes that have it, up to the longest."""
    columns = zip_longest(*(episode.messages for episode in episodes))
    means = tuple(fmean(tokens for tokens in column if tokens is not None) for column in columns)
    return EpisodeTokens(round(fmean(episode.system for episode in episodes)), means)


def _play(env: Branchable, counter: TokenCounter, seed: int, plays: bool) -> EpisodeTokens:
    with told(f"episode {seed} of {name_of(env)}"):
        opening = begin(env, seed, Key(seed).fold_in("estimate"))
        system = counter.system(opening.instructions)
        following, tokens = opening.messages, list[float]()
        for turn in range(MOST_TURNS):
            tokens.append(counter.messages(following))
            response = some_response(env, seed, Key(seed).fold_in("estimate", turn)) if plays else ""
            following, ended = advance(env, seed, response)
            if ended:
                break
    return EpisodeTokens(system, tuple(tokens))
