"""Text that yields no control token, whatever it spells. Knows a tokenizer, and no conversation."""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast


def plain_encoder(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], tuple[int, ...]]:
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
