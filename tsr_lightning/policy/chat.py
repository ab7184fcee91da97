"""Tokens in, tokens out: a conversation as ids. Knows a tokenizer and its template, and no model.

What the policy sampled stays as it was sampled: ids are stored and put back, text is never tokenised again. What the
environment said is text and nothing else, whatever it spells.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.plain import PlainText
from tsr_lightning.policy.template import Template
from tsr_lightning.trajectory import Turn

_REMEMBERED = 2**14


@dataclass(frozen=True)
class Context(ABC):
    """How much of the past a prompt shows. The system message and the present observation are always there."""

    @abstractmethod
    def kept(self, turns: int) -> int:
        """How many of the last of `turns` past turns stay in view."""


@dataclass(frozen=True)
class Full(Context):
    """Every past turn."""

    def kept(self, turns: int) -> int:
        return turns


@dataclass(frozen=True)
class LastK(Context):
    """The last few turns; older ones fall away.

    Args:
        k: past turns in view, besides the present observation.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"data.context.k is {self.k}: keep at least 1 past turn, or choose SingleTurn for none")

    def kept(self, turns: int) -> int:
        return min(turns, self.k)


@dataclass(frozen=True)
class SingleTurn(Context):
    """No past turn: the observation must tell all."""

    def kept(self, turns: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Layout:
    """The literal ids of a conversation with T past turns."""

    opening: tuple[int, ...]  # before the system text, where there is one
    observations: tuple[tuple[int, ...], ...]  # [T + 1] before each observation
    responses: tuple[tuple[int, ...], ...]  # [T + 1] before each response, the one to come included


class Chat:
    """Builds prompts and reads responses.

    Args:
        tokenizer: with any chat template, or with none.
        context: how much of the past a prompt shows.
    """

    end_ids: frozenset[int]  # a response ends with any of these

    def __init__(self, tokenizer: PreTrainedTokenizerFast, context: Context = Full()) -> None:
        self.context = context
        self._tokenizer = tokenizer
        self._template = Template(tokenizer)
        self._plain = PlainText(tokenizer).ids
        self._end = self._find_end()
        eos = tokenizer.eos_token_id
        self.end_ids = frozenset({self._end} if eos is None else {self._end, eos})
        # per instance and not per class, so that a chat and its caches go together
        self._layout = cache(self._make_layout)
        self._rewritten = lru_cache(maxsize=_REMEMBERED)(self._rewrite)

    @property
    def extends(self) -> bool:
        """Whether each prompt begins with the prompt and the response before it, so that turns share a row."""
        return self._template.extends and isinstance(self.context, Full)

    def prompt(self, system: str, turns: Sequence[Turn], observation: str) -> tuple[int, ...]:
        """The context that the next response is sampled from: [P].

        Args:
            system: the instructions; with none, whatever the template says without a system message.
            turns: all past turns, of which the context chooses.
            observation: what the environment says now.
        """
        count = self.context.kept(len(turns))
        layout = self._layout(count, bool(system))
        ids: list[int] = []
        if system:
            ids += layout.opening
            ids += self._text(system)
        for index, turn in enumerate(turns[len(turns) - count :]):
            ids += layout.observations[index]
            ids += self._text(turn.observation)
            ids += layout.responses[index]
            if not self._template.extends:
                ids += self._rewritten(turn.response)
                continue
            ids += turn.response
            if not turn.finished:
                ids.append(self._end)
        ids += layout.observations[count]
        ids += self._text(observation)
        ids += layout.responses[count]
        return tuple(ids)

    def read(self, response: Sequence[int]) -> str:
        """The text of a response, without control tokens."""
        said = [index for index in response if index not in self.end_ids]
        return self._tokenizer.backend_tokenizer.decode(said, skip_special_tokens=True)

    def write(self, text: str) -> tuple[int, ...]:
        """A text as the ids of a finished response."""
        return (*self._plain(text), self._end)

    def _text(self, text: str) -> tuple[int, ...]:
        return self._plain(text.strip() if self._template.trims else text)

    def _rewrite(self, response: tuple[int, ...]) -> tuple[int, ...]:
        return self._plain(self._template.rewritten(self.read(response)))

    def _make_layout(self, turns: int, system: bool) -> _Layout:
        literals = [self._literal(text) for text in self._template.literals(turns, system)]
        opening = literals.pop(0) if system else ()
        first, *later = literals[::2]
        before = literals[1::2]
        if self._template.extends:  # what was sampled stands where it was sampled, and is closed once
            before = [self._literal(self._template.literals(turn, system)[-1]) for turn in range(turns + 1)]
            later = [self._after_end(ids) for ids in later]
        return _Layout(opening, (first, *later), tuple(before))

    def _after_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids[ids.index(self._end) + 1 :] if self._end in ids else ids

    def _find_end(self) -> int:
        control = set(self._tokenizer.get_added_vocab().values())
        ending = [index for index in self._literal(self._template.ending()) if index in control]
        ending += [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        if not ending:
            raise ConfigError("model.policy.model has a tokenizer without an end token: set its eos_token")
        return ending[0]

    def _literal(self, text: str) -> tuple[int, ...]:
        """The template's own text, in which control tokens mean what they say."""
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
