"""Chat formatting on token ids. Knows a tokenizer and its chat template, and no model.

Sampled ids are reused, unless the template rewrites earlier turns: their text is then rendered anew.
Environment text is tokenised as plain text, so it yields no control token, whatever it spells.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.policy.fragments import Fragment, fragment_cutter
from tsr_lightning.policy.model_files import published_ends
from tsr_lightning.policy.offer import offered
from tsr_lightning.policy.plain import own_text_encoder, plain_encoder
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.template import ChatTemplate, Content, Rendered
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message, Turn

ResultT = TypeVar("ResultT")

_CACHED_LAYOUTS = 2**10  # sequences of roles
_CACHED_TEXTS = 2**14  # a search shows the same observations thousands of times
_CACHED_LONG_TEXTS = 2**9  # of pages and files, whose ids would take gigabytes
_LONG = 2**10  # characters
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
        ends: ids that end a response beside the template's and the tokenizer's.
    """

    end_ids: frozenset[int]  # each of these ends a response

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        context: Context = Full(),
        *,
        template_arguments: Mapping[str, Any] | None = None,
        response_prefix: str = "",
        ends: Collection[int] = (),
    ) -> None:
        self._context = context
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, template_arguments, response_prefix)
        self._prefix = response_prefix
        self._opening = self.template.opened + response_prefix  # of a response, in the prompt
        self._opening_tokens = len(self._opening.encode())  # at most: a token is at least a byte
        self._end = self._find_end()
        eos = tokenizer.eos_token_id
        self.end_ids = frozenset({self._end, *([] if eos is None else [eos]), *ends})
        # caches of the instance, not of the class, so that they are freed with it
        self._layout = lru_cache(maxsize=_CACHED_LAYOUTS)(self._make_layout)
        plain = plain_encoder(tokenizer)  # made once: it takes 0.5 s for a vocabulary of 49,000
        self._encode_plain = _cached(plain)
        self._encode_own = _cached(own_text_encoder(tokenizer, plain))
        self._cut = _cached(fragment_cutter(tokenizer, plain))
        self._conversation = lru_cache(maxsize=_CACHED_LAYOUTS)(self.template.conversation)
        self._end_text = tokenizer.backend_tokenizer.decode([self._end], skip_special_tokens=False)

    @classmethod
    def of(cls, spec: PolicySpec, tokenizer: PreTrainedTokenizerFast, context: Context = Full()) -> "Chat":
        """The format of a policy's prompts and responses."""
        arguments, prefix = spec.template_arguments, spec.response_prefix
        ends = () if isinstance(spec.model, Scratch) else published_ends(spec.model)
        return cls(tokenizer, context, template_arguments=arguments, response_prefix=prefix, ends=ends)

    @property
    def call_format(self) -> CallFormatName:
        """In which responses call tools, where an environment prefers no other."""
        return self.template.call_format or "hermes"

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt of the next response: [P] ids.

        Args:
            turns: all past turns, of which the context selects; the first one's system messages and tools are
                always shown.
            messages: the present ones, in any roles that the template takes.
        """
        skipped = len(turns) - self._context.visible_turns(len(turns))
        shown, tools = offered([*_shown(turns, skipped), *messages], self.template.call_format)
        is_own = any(isinstance(each, Turn) or each.role == "assistant" for each in shown)
        if is_own and not self.template.is_prefix_preserving:
            return self._rendered(shown, tools, reuses=not skipped)
        return self._joined(self._layout(_roles(shown), tools), [self._content(each) for each in shown])

    def following(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids [F] from the last turn's response to the next one, as a prompt under Full has them, under any
        context. For templates that preserve prefixes.

        Args:
            turns: all past turns, at least one.
            messages: that answer the response; there may be none, and then nothing follows.
        """
        if not messages:
            return ()
        shown, tools = offered([*_shown(turns, 0), *messages], self.template.call_format)
        after = len(shown) - sum(each.role != "tools" for each in messages)  # the place behind the response
        contents = [self._content(each) for each in shown[after:]]
        ids = self._joined(self._layout(_roles(shown), tools)[after:], contents)
        return ids if turns[-1].finished else (self._end, *ids)

    def _content(self, shown: Message | Turn) -> str | tuple[int, ...]:
        """The plain text of a message, or the ids of the policy's text: of a response, as they were sampled."""
        if isinstance(shown, Turn):
            return shown.response if shown.finished else (*shown.response, self._end)
        text = self.template.written(shown.role, shown.content)
        return self._encode_own(text) if shown.role == "assistant" else text

    def _joined(self, fragments: Sequence[Fragment], contents: Sequence[str | tuple[int, ...]]) -> tuple[int, ...]:
        """The ids of M contents, with [M + 1] fragments around them."""
        ids, run = [*fragments[0].ids], fragments[0].tail
        for content, after in zip(contents, fragments[1:], strict=True):
            if isinstance(content, str):
                run += content + after.lead
            if after.joins:
                continue
            ids += self._encode_plain(run) if isinstance(content, str) else content
            ids += after.ids
            run = after.tail
        return tuple(ids)

    def _rendered(self, shown: Sequence[Message | Turn], tools: str, *, reuses: bool) -> tuple[int, ...]:
        """A prompt whose responses are as the template renders them now, which may depend on all that follows.

        Args:
            shown: the conversation.
            tools: schemas of what is offered, as JSON.
            reuses: whether all past turns are shown, so that their prompts may begin this one.
        """
        roles = tuple("assistant" if isinstance(each, Turn) else each.role for each in shown)
        texts = tuple(self._own_text(each) for each in shown)
        rendered = self._conversation(roles, texts, tools)
        ids, begin = self._kept(rendered, shown, roles, texts, tools) if reuses else ((), 0)
        between, marks = rendered.parts(begin)
        are_texts = [False, *(isinstance(mark, Content) for mark in marks), False]
        fragments = [self._cut(*cut) for cut in zip(between, are_texts, are_texts[1:], strict=False)]
        contents = [
            self._content(shown[mark.message]) if isinstance(mark, Content) else self._encode_plain(mark.text)
            for mark in marks
        ]
        return (*ids, *self._joined(fragments, contents))

    def _kept(
        self,
        rendered: Rendered,
        shown: Sequence[Message | Turn],
        roles: tuple[str, ...],
        texts: tuple[str | None, ...],
        tools: str,
    ) -> tuple[tuple[int, ...], int]:
        """The ids of the last turn that the template has left as it was, with all before it, and where its text ends:
        the longest beginning that needs not be tokenised anew."""
        for place in reversed(range(len(shown))):
            turn = shown[place]
            if not isinstance(turn, Turn):
                continue
            before = self._conversation(roles[:place], texts[:place], tools).text
            whole = before + self._decoded(turn.response) + self._end_text
            if rendered.text.startswith(whole):
                return (*turn.prompt, *self._content(turn)), len(whole)
        return (), 0

    def _own_text(self, shown: Message | Turn) -> str | None:
        if isinstance(shown, Turn):
            return self.read(shown.response, shown.prompt)
        return shown.content if shown.role == "assistant" else None

    def read(self, response: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """The text of a response, without control tokens, after what its prompt has begun it with."""
        return self._begun(prompt) + self._decoded(response)

    def write(self, text: str, prompt: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids of a finished response that is read as this text after its prompt. Where the prompt opens a reasoning
        that the text does not have, it is closed at once."""
        return (*self._encode_own(_after(self._begun(prompt), text)), self._end)

    def _decoded(self, response: Sequence[int]) -> str:
        kept = [index for index in response if index not in self.end_ids]
        return self.tokenizer.backend_tokenizer.decode(kept, skip_special_tokens=True)

    def _begun(self, prompt: Sequence[int]) -> str:
        """The beginning of a response that a prompt ends with: templates may open a tag in some prompts only."""
        if self._opening == self._prefix:
            return self._prefix
        tail = list(prompt[-self._opening_tokens :])
        shown = self.tokenizer.backend_tokenizer.decode(tail, skip_special_tokens=False)
        return self._opening if shown.endswith(self._opening) else self._prefix

    def _make_layout(self, roles: tuple[str, ...], tools: str) -> tuple[Fragment, ...]:
        """The template's own text before each of M contents, and before the next response: [M + 1]."""
        names = ["assistant" if role == _RESPONSE else role for role in roles]
        texts = self.template.fragments(names, tools)
        for index, role in enumerate(roles):
            if role == _RESPONSE:  # it follows the prompt that it was sampled from
                texts[index] = self.template.fragments(names[:index], tools)[-1]
        are_texts = [False, *(role not in (_RESPONSE, "assistant") for role in roles), False]
        fragments = [self._cut(*cut) for cut in zip(texts, are_texts, are_texts[1:], strict=False)]
        for index, role in enumerate(roles, start=1):
            after = fragments[index].ids
            if role == _RESPONSE and self._end in after:  # it ends once
                fragments[index] = fragments[index]._replace(ids=after[after.index(self._end) + 1 :])
        return tuple(fragments)

    def _find_end(self) -> int:
        """The token that ends a turn: the first control token after a response, or before the message that follows it
        (GLM-4's `<|user|>`), or else the tokenizer's end token."""
        control = set(self.tokenizer.get_added_vocab().values()) - {self.tokenizer.bos_token_id}
        closing = self.template.fragments(["user", "assistant"], add_generation_prompt=False)[-1]
        ends = [index for index in self._encode_template(closing) if index in control]
        if not ends:
            following = self.template.fragments(["user", "assistant", "user"])[2]
            ends += [index for index in self._encode_template(following) if index in control]
        ends += [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        name = self.tokenizer.name_or_path
        require(bool(ends), "model.policy.model", name, "its tokenizer has no end token, so set its eos_token")
        return ends[0]

    def _encode_template(self, text: str) -> tuple[int, ...]:
        """The ids of the template's own text, in which control tokens count."""
        return tuple(self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def _shown(turns: Sequence[Turn], skipped: int) -> list[Message | Turn]:
    """The conversation without its first turns; of these, the system's messages and tools of the first one stay."""
    shown: list[Message | Turn] = []
    if skipped:
        shown += [message for message in turns[0].messages if message.role in ("system", "tools")]
    for turn in turns[skipped:]:
        shown += [*turn.messages, turn]
    return shown


def _roles(shown: Sequence[Message | Turn]) -> tuple[str, ...]:
    return tuple(_RESPONSE if isinstance(each, Turn) else each.role for each in shown)


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


def _cached(encode: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """A function of a text, and perhaps of more, that remembers what it returned: of long texts fewer."""
    of_short, of_long = lru_cache(maxsize=_CACHED_TEXTS)(encode), lru_cache(maxsize=_CACHED_LONG_TEXTS)(encode)

    def cached(text: str, *others: Any) -> ResultT:
        return (of_short if len(text) <= _LONG else of_long)(text, *others)

    return cached
