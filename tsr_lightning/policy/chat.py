"""Chat formatting on token ids. Knows a tokenizer and its chat template, and no model.

Sampled ids are reused as they were sampled: their text is never tokenised again. Environment text is tokenised as plain
text, so it yields no control token, whatever it spells.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import require
from tsr_lightning.policy.plain import plain_encoder
from tsr_lightning.policy.template import ChatTemplate
from tsr_lightning.trajectory import Message, Turn

_CACHED_LAYOUTS = 2**10  # sequences of roles
_CACHED_TEXTS = 2**14  # a search shows the same observations thousands of times
_RESPONSE = "response"  # role of a turn's response in a layout; an assistant's message has no sampled ids


@dataclass(frozen=True)
class Context(ABC):
    """How many past turns a prompt shows. It always has the first turn's system message and the present messages."""

    @abstractmethod
    def visible_turns(self, turns: int) -> int:
        """How many of `turns` past turns the prompt shows: the most recent ones."""


@dataclass(frozen=True)
class Full(Context):
    """Every past turn."""

    def visible_turns(self, turns: int) -> int:
        return turns


@dataclass(frozen=True)
class LastK(Context):
    """The most recent past turns.

    Args:
        k: past turns shown, besides the present observation.
    """

    k: int

    def __post_init__(self) -> None:
        require(self.k >= 1, "LastK.k", self.k, "show at least 1 past turn, or use SingleTurn for none")

    def visible_turns(self, turns: int) -> int:
        return min(turns, self.k)


@dataclass(frozen=True)
class SingleTurn(Context):
    """No past turn: each observation must be enough to act on."""

    def visible_turns(self, turns: int) -> int:
        return 0


class Chat:
    """Builds prompts and decodes responses.

    Args:
        tokenizer: with any chat template, or with none.
        context: how many past turns a prompt shows.
    """

    end_ids: frozenset[int]  # each of these ends a response

    def __init__(self, tokenizer: PreTrainedTokenizerFast, context: Context = Full()) -> None:
        self._context = context
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._end = self._find_end()
        eos = tokenizer.eos_token_id
        self.end_ids = frozenset({self._end} if eos is None else {self._end, eos})
        # caches of the instance, not of the class, so that they are freed with it
        self._layout = lru_cache(maxsize=_CACHED_LAYOUTS)(self._make_layout)
        cached, encode = lru_cache(maxsize=_CACHED_TEXTS), plain_encoder(tokenizer)
        self._encode_plain = cached(encode)
        trims = self._template.trims_contents
        self._encode_content = cached(lambda text: encode(text.strip())) if trims else self._encode_plain
        self._encode_rewritten = cached(self._rewritten)

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt of the next response: [P] ids.

        Args:
            turns: all past turns, of which the context selects; the first one's system messages are always shown.
            messages: the present ones, in any roles that the template takes.
        """
        encode, is_prefix_preserving = self._encode_content, self._template.is_prefix_preserving
        skipped = len(turns) - self._context.visible_turns(len(turns))
        roles: list[str] = []
        contents: list[tuple[int, ...]] = []
        if skipped:
            for message in turns[0].messages:
                if message.role == "system":
                    roles.append("system")
                    contents.append(encode(message.content))
        for number, turn in enumerate(turns[skipped:], start=skipped):
            for message in turn.messages:
                roles.append(message.role)
                contents.append(encode(message.content))
            roles.append(_RESPONSE)
            if not is_prefix_preserving:
                contents.append(self._encode_rewritten(turn.response, _later_roles(turns, number, messages)))
            else:
                contents.append(turn.response if turn.finished else (*turn.response, self._end))
        for message in messages:
            roles.append(message.role)
            contents.append(encode(message.content))
        contents.append(())  # the response to come
        ids: list[int] = []
        for before, content in zip(self._layout(tuple(roles)), contents, strict=True):
            ids += before
            ids += content
        return tuple(ids)

    def read(self, response: Sequence[int]) -> str:
        """The text of a response, without control tokens."""
        kept = [index for index in response if index not in self.end_ids]
        return self._tokenizer.backend_tokenizer.decode(kept, skip_special_tokens=True)

    def write(self, text: str) -> tuple[int, ...]:
        """The ids of a finished response with this text."""
        return (*self._encode_plain(text), self._end)

    def _rewritten(self, response: tuple[int, ...], later: tuple[str, ...]) -> tuple[int, ...]:
        return self._encode_plain(self._template.rewritten(self.read(response), later))

    def _make_layout(self, roles: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The template's own ids before each of M contents, and before the next response: [M + 1]."""
        names = ["assistant" if role == _RESPONSE else role for role in roles]
        ids = [self._encode_template(text) for text in self._template.fragments(names)]
        for index, role in enumerate(roles):
            if role == _RESPONSE and self._template.is_prefix_preserving:
                # a response follows the prompt it was sampled from, and ends once
                ids[index] = self._encode_template(self._template.fragments(names[:index])[-1])
                after = ids[index + 1]
                ids[index + 1] = after[after.index(self._end) + 1 :] if self._end in after else after
        return tuple(ids)

    def _find_end(self) -> int:
        """The token that ends a turn: the first control token after a response, or else the tokenizer's end token."""
        control = set(self._tokenizer.get_added_vocab().values())
        closing = self._template.fragments(["user", "assistant"], add_generation_prompt=False)[-1]
        ends = [index for index in self._encode_template(closing) if index in control]
        ends += [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        name = self._tokenizer.name_or_path
        require(bool(ends), "model.policy.model", name, "its tokenizer has no end token, so set its eos_token")
        return ends[0]

    def _encode_template(self, text: str) -> tuple[int, ...]:
        """The ids of the template's own text, in which control tokens count."""
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def _later_roles(turns: Sequence[Turn], number: int, messages: Sequence[Message]) -> tuple[str, ...]:
    """The role of the message after a turn's response, and that a user's message comes later still where one does."""
    after = [turn.messages for turn in turns[number + 1 :]] + [tuple(messages)]
    upcoming = after[0][0].role if after[0] else "user"
    has_user = any(message.role == "user" for each in after for message in each)
    return (upcoming,) if upcoming == "user" or not has_user else (upcoming, "assistant", "user")
