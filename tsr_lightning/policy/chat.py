"""Chat formatting on token ids. Knows a tokenizer and its chat template, and no model.

Sampled ids are reused, unless the template rewrites earlier turns: their text is then rendered anew.
Environment text is tokenised as plain text, so it yields no control token, whatever it spells.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.policy.plain import own_text_encoder, plain_encoder
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.template import ChatTemplate, Content, Spelled
from tsr_lightning.trajectory import Message, Turn

_CACHED_LAYOUTS = 2**10  # sequences of roles
_CACHED_TEXTS = 2**14  # a search shows the same observations thousands of times
_RESPONSE = "response"  # role of a turn's response in a layout; an assistant's message has no sampled ids


@dataclass(frozen=True)
class Context(ABC):
    """The number of past turns that a prompt shows. It always has the first turn's system message and the present
    messages."""

    @abstractmethod
    def visible_turns(self, turns: int) -> int:
        """Counts the past turns, of `turns`, that the prompt shows: the most recent ones."""


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
        template_arguments: of the chat template, by name.
        response_prefix: text that ends every prompt and begins the response as it is read.
    """

    end_ids: frozenset[int]  # each of these ends a response

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        context: Context = Full(),
        *,
        template_arguments: Mapping[str, Any] | None = None,
        response_prefix: str = "",
    ) -> None:
        self._context = context
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, template_arguments, response_prefix)
        self._prefix = response_prefix
        self._opening = self._template.opened + response_prefix  # of a response, in the prompt
        self._opening_tokens = len(self._opening.encode())  # at most: a token is at least a byte
        self._end = self._find_end()
        eos = tokenizer.eos_token_id
        self.end_ids = frozenset({self._end} if eos is None else {self._end, eos})
        # caches of the instance, not of the class, so that they are freed with it
        self._layout = lru_cache(maxsize=_CACHED_LAYOUTS)(self._make_layout)
        cached, encode = lru_cache(maxsize=_CACHED_TEXTS), plain_encoder(tokenizer)
        self._encode_plain = cached(encode)
        self._encode_own = cached(own_text_encoder(tokenizer))
        self._encode_segment = cached(self._encode_template)
        self._trims = self._template.trims_contents

    @classmethod
    def of(cls, spec: PolicySpec, tokenizer: PreTrainedTokenizerFast, context: Context = Full()) -> "Chat":
        """The format of a policy's prompts and responses."""
        arguments, prefix = spec.template_arguments, spec.response_prefix
        return cls(tokenizer, context, template_arguments=arguments, response_prefix=prefix)

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt of the next response: [P] ids.

        Args:
            turns: all past turns, of which the context selects; the first one's system messages are always shown.
            messages: the present ones, in any roles that the template takes.
        """
        skipped = len(turns) - self._context.visible_turns(len(turns))
        shown: list[Message | Turn] = []
        if skipped:
            shown += [message for message in turns[0].messages if message.role == "system"]
        for turn in turns[skipped:]:
            shown += [*turn.messages, turn]
        shown += messages
        is_own = any(isinstance(each, Turn) or each.role == "assistant" for each in shown)
        if is_own and not self._template.is_prefix_preserving:
            return self._rendered(shown)
        contents = [self._content(each) for each in shown]
        contents.append(())  # the response to come
        roles = tuple(_RESPONSE if isinstance(each, Turn) else each.role for each in shown)
        ids: list[int] = []
        for before, content in zip(self._layout(roles), contents, strict=True):
            ids += before
            ids += content
        return tuple(ids)

    def _content(self, shown: Message | Turn) -> tuple[int, ...]:
        """The ids of a message's content, or of a response as it was sampled."""
        if isinstance(shown, Turn):
            return shown.response if shown.finished else (*shown.response, self._end)
        text = shown.content.strip() if self._trims else shown.content
        return self._encode_own(text) if shown.role == "assistant" else self._encode_plain(text)

    def _rendered(self, shown: Sequence[Message | Turn]) -> tuple[int, ...]:
        """A prompt whose responses are as the template renders them now, which may depend on all that follows."""
        roles = ["assistant" if isinstance(each, Turn) else each.role for each in shown]
        texts = [self._own_text(each) for each in shown]
        ids: list[int] = []
        for part in self._template.conversation(roles, texts):
            match part:
                case str():
                    ids += self._encode_segment(part)
                case Content(message):
                    ids += self._content(shown[message])
                case Spelled(text):
                    ids += self._encode_plain(text)
        return tuple(ids)

    def _own_text(self, shown: Message | Turn) -> str | None:
        if isinstance(shown, Turn):
            return self.read(shown.response, shown.prompt)
        return shown.content if shown.role == "assistant" else None

    def read(self, response: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """The text of a response, without control tokens, after what its prompt has begun it with."""
        kept = [index for index in response if index not in self.end_ids]
        return self._begun(prompt) + self._tokenizer.backend_tokenizer.decode(kept, skip_special_tokens=True)

    def write(self, text: str, prompt: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids of a finished response that is read as this text after its prompt. Where the prompt opens a reasoning
        that the text does not have, it is closed at once."""
        return (*self._encode_own(_after(self._begun(prompt), text)), self._end)

    def _begun(self, prompt: Sequence[int]) -> str:
        """The beginning of a response that a prompt ends with: templates may open a tag in some prompts only."""
        if self._opening == self._prefix:
            return self._prefix
        tail = list(prompt[-self._opening_tokens :])
        shown = self._tokenizer.backend_tokenizer.decode(tail, skip_special_tokens=False)
        return self._opening if shown.endswith(self._opening) else self._prefix

    def _make_layout(self, roles: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The template's own ids before each of M contents, and before the next response: [M + 1]."""
        names = ["assistant" if role == _RESPONSE else role for role in roles]
        ids = [self._encode_template(text) for text in self._template.fragments(names)]
        for index, role in enumerate(roles):
            if role == _RESPONSE:
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


def _after(begun: str, text: str) -> str:
    """The rest of a response that begins so."""
    opening = begun.rstrip()
    space = begun[len(opening) :]
    if text.startswith(begun):
        return text[len(begun) :]
    if text.startswith(opening):
        return text[len(opening) :].lstrip()
    if opening == "<think>":
        return f"{space}</think>{2 * space}{text}"
    raise ConfigError(
        f"model.policy.response_prefix is {begun!r}: a demonstrated response begins with {text[:40]!r}; let it begin "
        "with the prefix, or leave the prefix out"
    )
