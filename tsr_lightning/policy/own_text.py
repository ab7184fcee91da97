"""Tokenises the policy's own text: added tokens count in it, special ones do not. Knows a tokenizer.

A chat template's output is tokenised whole, so an assistant's `<think>` or `<tool_call>` is the token that the model
generates, where its vocabulary has one. A special token that is only spelled there stays text.
"""

import re
from collections.abc import Callable

from transformers import PreTrainedTokenizerFast

from tsr_lightning.policy.plain import plain_encoder

_NOTHING = re.compile(r"(?!)")


def spelled_control(tokenizer: PreTrainedTokenizerFast) -> re.Pattern[str]:
    """Matches a special token that is spelled in a text, the longest first."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    longest_first = sorted(special, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if special else _NOTHING


def own_text_encoder(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], tuple[int, ...]]:
    """Tokenises the policy's text as the tokenizer does, but for special tokens that it spells."""
    plain, control, backend = plain_encoder(tokenizer), spelled_control(tokenizer), tokenizer.backend_tokenizer
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.discard(-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id)  # of text without a token

    def encode(text: str) -> tuple[int, ...]:
        ids: list[int] = []
        begin = 0
        for match in control.finditer(text):
            ids += _without(text[begin : match.start()])
            ids += plain(match[0])
            begin = match.end()
        return (*ids, *_without(text[begin:]))

    def _without(text: str) -> tuple[int, ...]:
        ids = backend.encode(text, add_special_tokens=False).ids
        # normalisation may lead to a special token that the text does not spell
        return tuple(ids) if special.isdisjoint(ids) else plain(text)

    return encode
