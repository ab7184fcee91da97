"""Text as text: ids that no spelling can turn into a control token. Knows a tokenizer, and no conversation."""

import json
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

_REMEMBERED = 2**14  # texts; observations recur by the thousand within a search


class PlainText:
    """Tokenises a text that others wrote.

    `split_special_tokens=True` still lets through the tokens that were merely added, such as `<tool_call>`. So this is
    a second tokenizer in which no added token exists: neither as such, nor in the vocabulary, nor by a merge.

    Args:
        tokenizer: the tokenizer whose ids to use.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        described = json.loads(tokenizer.backend_tokenizer.to_str())
        added = {token["content"]: token["id"] for token in described["added_tokens"]}
        unknown = _unknown(described["model"])
        added.pop(unknown, None)  # what stands for the unknown is no control token
        described |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        described["model"] |= _without(described["model"], set(added))
        self._backend = Tokenizer.from_str(json.dumps(described))
        self._forbidden = frozenset(added.values())
        self.ids = lru_cache(maxsize=_REMEMBERED)(self._ids)

    def _ids(self, text: str) -> tuple[int, ...]:
        ids = self._backend.encode(text, add_special_tokens=False).ids
        if self._forbidden.isdisjoint(ids):
            return tuple(ids)
        # The last guard: character by character, and what even so is forbidden falls away.
        parts = (self._backend.encode(character, add_special_tokens=False).ids for character in text)
        return tuple(index for part in parts for index in part if index not in self._forbidden)


def _unknown(model: dict[str, Any]) -> str | None:
    """The entry that stands for what a vocabulary of words cannot say; byte pairs need none."""
    match model["type"]:
        case "WordLevel" | "WordPiece":
            return model["unk_token"]
        case "Unigram" if model["unk_id"] is not None:
            return model["vocab"][model["unk_id"]][0]
    return None


def _without(model: dict[str, Any], hidden: set[str]) -> dict[str, Any]:
    """What changes in a tokenizer's model where it must not know some of its entries."""
    vocabulary = model["vocab"]
    if model["type"] == "Unigram":  # an entry's place is its id, so it stays, under a name that nobody writes
        return {"vocab": [[f"{chr(0) * 64}{i}" if t in hidden else t, s] for i, (t, s) in enumerate(vocabulary)]}
    changes: dict[str, Any] = {"vocab": {token: index for token, index in vocabulary.items() if token not in hidden}}
    if model["type"] == "BPE":
        pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
        changes["merges"] = [pair for pair in pairs if hidden.isdisjoint((*pair, "".join(pair)))]
        changes["unk_token"] = None if model["unk_token"] in hidden else model["unk_token"]
    return changes
