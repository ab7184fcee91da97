"""Tokenises text that yields no control token, whatever it spells, and the policy's own, in which added tokens count.
Knows a tokenizer, and no conversation."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

Encoder = Callable[[str], tuple[int, ...]]


def plain_encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    """Tokenises text without the added tokens of `tokenizer`.

    `split_special_tokens=True` does not split tokens that were added but are not special, such as `<tool_call>`. So
    this is a second tokenizer that has no added token: neither as such, nor in the vocabulary, nor by a merge.
    """
    config = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {token["content"]: token["id"] for token in config["added_tokens"]}
    added.pop(_unknown_token(config["model"]), None)  # not a control token
    config |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    config["model"] |= _without(config["model"], set(added))
    backend = Tokenizer.from_str(json.dumps(config))
    forbidden = frozenset(added.values())

    def encode(text: str) -> tuple[int, ...]:
        ids = backend.encode(text, add_special_tokens=False).ids
        if forbidden.isdisjoint(ids):
            return tuple(ids)
        # last resort: character by character, leaving out what is still forbidden
        parts = (backend.encode(character, add_special_tokens=False).ids for character in text)
        return tuple(index for part in parts for index in part if index not in forbidden)

    return encode


def _unknown_token(model: dict[str, Any]) -> str | None:
    """The token for text outside the vocabulary; None for byte-pair encodings, which cover all text."""
    match model["type"]:
        case "WordLevel" | "WordPiece":
            return model["unk_token"]
        case "Unigram" if model["unk_id"] is not None:
            return model["vocab"][model["unk_id"]][0]
    return None


def _without(model: dict[str, Any], removed: set[str]) -> dict[str, Any]:
    """The changes to a tokenizer's model that remove these tokens from it."""
    vocabulary = model["vocab"]
    if model["type"] == "Unigram":  # an entry's index is its id, so it stays, under a name that no text contains
        return {"vocab": [[f"{chr(0) * 64}{i}" if t in removed else t, s] for i, (t, s) in enumerate(vocabulary)]}
    changes: dict[str, Any] = {"vocab": {token: index for token, index in vocabulary.items() if token not in removed}}
    if model["type"] == "BPE":
        pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
        changes["merges"] = [pair for pair in pairs if removed.isdisjoint((*pair, "".join(pair)))]
        changes["unk_token"] = None if model["unk_token"] in removed else model["unk_token"]
    return changes


_NOTHING = re.compile(r"(?!)")


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches one of these texts, the longest first; nothing where there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else _NOTHING


def spelled_control(tokenizer: PreTrainedTokenizerFast) -> re.Pattern[str]:
    """Matches a special token that is spelled in a text, the longest first."""
    return any_of(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)


def own_text_encoder(tokenizer: PreTrainedTokenizerFast, plain: Encoder) -> Encoder:
    """Tokenises the policy's text as the tokenizer does, but for special tokens that it spells.

    A chat template's output is tokenised whole, so an assistant's `<think>` or `<tool_call>` is the token that the
    model generates, where its vocabulary has one. A special token that is only spelled there stays text.

    Args:
        tokenizer: of the policy.
        plain: its `plain_encoder`, which takes long to make of a large vocabulary.
    """
    control, backend = spelled_control(tokenizer), tokenizer.backend_tokenizer
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.discard(-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id)  # of text without a token

    def encode(text: str) -> tuple[int, ...]:
        ids: list[int] = []
        begin = 0
        for match in control.finditer(text):
            ids += unspelled(text[begin : match.start()])
            ids += plain(match[0])
            begin = match.end()
        return (*ids, *unspelled(text[begin:]))

    def unspelled(text: str) -> tuple[int, ...]:
        ids = backend.encode(text, add_special_tokens=False).ids
        # normalisation may lead to a special token that the text does not spell
        return tuple(ids) if special.isdisjoint(ids) else plain(text)

    return encode
