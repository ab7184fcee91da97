"""Chat formatting on token ids. Knows a tokenizer and its chat template, and no model.

Sampled ids are reused as they were sampled: their text is never tokenised again. Environment text is tokenised as plain
text, so it yields no control token, whatever it spells.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import require
from tsr_lightning.policy.plain import PlainText
from tsr_lightning.policy.template import ChatTemplate
from tsr_lightning.trajectory import Turn

_CACHED_RESPONSES = 2**14


@dataclass(frozen=True)
class Context(ABC):
    """How many past turns a prompt shows. It always has the system message and the present observation."""

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


@dataclass(frozen=True, slots=True)
class _Layout:
    """The template's own ids in a conversation with T past turns."""

    before_system: tuple[int, ...]
    before_observations: tuple[tuple[int, ...], ...]  # [T + 1]
    before_responses: tuple[tuple[int, ...], ...]  # [T + 1], the next response included


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
        self._encode_plain = PlainText(tokenizer).encode
        self._end = self._find_end()
        eos = tokenizer.eos_token_id
        self.end_ids = frozenset({self._end} if eos is None else {self._end, eos})
        # caches of the instance, not of the class, so that they are freed with it
        self._layout = cache(self._make_layout)
        self._encode_history = lru_cache(maxsize=_CACHED_RESPONSES)(self._encode_rewritten)

    def prompt(self, system: str, turns: Sequence[Turn], observation: str) -> tuple[int, ...]:
        """The prompt of the next response: [P] ids.

        Args:
            system: the instructions; without any, what the template renders without a system message.
            turns: all past turns, of which the context selects.
            observation: the present one.
        """
        count = self._context.visible_turns(len(turns))
        layout = self._layout(count, bool(system))
        ids: list[int] = []
        if system:
            ids += layout.before_system
            ids += self._encode_content(system)
        for index, turn in enumerate(turns[len(turns) - count :]):
            ids += layout.before_observations[index]
            ids += self._encode_content(turn.observation)
            ids += layout.before_responses[index]
            if not self._template.is_prefix_preserving:
                ids += self._encode_history(turn.response)
                continue
            ids += turn.response
            if not turn.finished:
                ids.append(self._end)
        ids += layout.before_observations[count]
        ids += self._encode_content(observation)
        ids += layout.before_responses[count]
        return tuple(ids)

    def read(self, response: Sequence[int]) -> str:
        """The text of a response, without control tokens."""
        kept = [index for index in response if index not in self.end_ids]
        return self._tokenizer.backend_tokenizer.decode(kept, skip_special_tokens=True)

    def write(self, text: str) -> tuple[int, ...]:
        """The ids of a finished response with this text."""
        return (*self._encode_plain(text), self._end)

    def _encode_content(self, text: str) -> tuple[int, ...]:
        return self._encode_plain(text.strip() if self._template.trims_contents else text)

    def _encode_rewritten(self, response: tuple[int, ...]) -> tuple[int, ...]:
        return self._encode_plain(self._template.rewritten(self.read(response)))

    def _make_layout(self, turns: int, system: bool) -> _Layout:
        fragments = [self._encode_template(text) for text in self._template.fragments(turns, system)]
        before_system = fragments.pop(0) if system else ()
        first, *later = fragments[::2]
        before_responses = fragments[1::2]
        if self._template.is_prefix_preserving:  # a response follows the prompt it was sampled from, and ends once
            before_responses = [
                self._encode_template(self._template.fragments(turn, system)[-1]) for turn in range(turns + 1)
            ]
            later = [self._after_end(ids) for ids in later]
        return _Layout(before_system, (first, *later), tuple(before_responses))

    def _after_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids[ids.index(self._end) + 1 :] if self._end in ids else ids

    def _find_end(self) -> int:
        """The token that ends a turn: the first control token after a response, or else the tokenizer's end token."""
        control = set(self._tokenizer.get_added_vocab().values())
        ends = [index for index in self._encode_template(self._template.closing()) if index in control]
        ends += [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        name = self._tokenizer.name_or_path
        require(bool(ends), "model.policy.model", name, "its tokenizer has no end token, so set its eos_token")
        return ends[0]

    def _encode_template(self, text: str) -> tuple[int, ...]:
        """The ids of the template's own text, in which control tokens count."""
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
