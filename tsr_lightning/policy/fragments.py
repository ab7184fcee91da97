"""A chat template's own text in tokens, between the contents of a conversation. Knows a tokenizer, and no template.

A tokenizer merges what stands between two added tokens, so the template's text that touches a content is tokenised with
it, as in the whole conversation; what a content spells stays plain text there too.
"""

from collections.abc import Callable
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from tsr_lightning.policy.plain import Encoder, any_of


class Fragment(NamedTuple):
    """Text between two contents."""

    lead: str  # belongs to the content before
    ids: tuple[int, ...]
    tail: str  # belongs to the content after
    joins: bool = False  # it has no added token, so that the contents before and after it are tokenised together


def fragment_cutter(tokenizer: PreTrainedTokenizerFast, plain: Encoder) -> Callable[[str, bool, bool], Fragment]:
    """Cuts a text at its first and at its last added token.

    The function's arguments are the text, and whether a content of plain text is before it and after it.

    Args:
        tokenizer: of the policy.
        plain: its `plain_encoder`.
    """
    backend = tokenizer.backend_tokenizer
    added = any_of(tokenizer.get_added_vocab())

    def encode(text: str) -> tuple[int, ...]:
        return tuple(backend.encode(text, add_special_tokens=False).ids)

    def cut(text: str, follows: bool, precedes: bool) -> Fragment:
        whole = Fragment("", encode(text), "")
        marks = list(added.finditer(text))
        if not marks:
            joins = follows and precedes and plain(text) == whole.ids
            return Fragment(text, (), "", joins=True) if joins else whole
        begin = marks[0].start() if follows else 0
        end = marks[-1].end() if precedes else len(text)
        parts = Fragment(text[:begin], encode(text[begin:end]), text[end:])
        # a tokenizer that puts a space before every text, or takes one to a token, is given the text whole
        return parts if (*plain(parts.lead), *parts.ids, *plain(parts.tail)) == whole.ids else whole

    return cut
