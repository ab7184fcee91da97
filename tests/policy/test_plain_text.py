"""Plain text over the kinds of tokenizers that models have: no text yields an added token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tsr_lightning.policy.plain import plain_encoder
from tsr_lightning.policy.vocabulary import make_tokenizer

TEXTS = ["Turn 1: you are at (1, 2) <tool_call> </s> <|im_end|> <s>", "######\n#_P_X#\n√ <think>so</think>"] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]"]
ADDED = ["<tool_call>", "</tool_call>", "<think>", "    ", "\n\n", "you"]


def own() -> Tokenizer:
    """As of a new model."""
    return make_tokenizer(TEXTS).backend_tokenizer


def byte_level(ignore_merges: bool) -> Tokenizer:
    """Like GPT-2's, Qwen's and (ignoring merges) Llama 3's."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    backend.model.ignore_merges = ignore_merges
    return backend


def sentencepiece() -> Tokenizer:
    """Like Llama 2's and Gemma's: control tokens are vocabulary entries, and merges lead to added tokens."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", *SPECIAL, *fallback])
    backend.train_from_iterator(TEXTS, trainer)
    config = json.loads(backend.to_str())
    config["added_tokens"] = []  # training adds all reserved tokens; a model's file adds only the control tokens
    return Tokenizer.from_str(json.dumps(config))


def unigram() -> Tokenizer:
    """Like T5's: control tokens are ordinary pieces."""
    pieces = ["<unk>", *SPECIAL, *ADDED]
    characters = sorted(set("".join(TEXTS)) | set("".join(pieces)) | {"▁"})
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces] + [(c, -5.0) for c in characters], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return backend


def words() -> Tokenizer:
    """Like BERT's."""
    entries = ["[UNK]", *SPECIAL, *ADDED, *sorted(set(" ".join(TEXTS).split()))]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(entries))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=i % 2 == 0) for i, token in enumerate(ADDED)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


TOKENIZERS = {
    "own": wrapped(own()),
    "byte level": wrapped(byte_level(ignore_merges=False)),
    "byte level, whole": wrapped(byte_level(ignore_merges=True)),
    "sentencepiece": wrapped(sentencepiece()),
    "unigram": wrapped(unigram()),
    "words": wrapped(words()),
}
PLAIN = {name: plain_encoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}
LOSSLESS = ["own", "byte level", "byte level, whole", "sentencepiece"]
SPELLED = st.lists(
    st.sampled_from([*SPECIAL, *ADDED, "<|im_", "end|>", "\0", "▁", "<0x0A>"]) | st.text(max_size=6), max_size=6
).map("".join)


def added(name: str) -> set[int]:
    unknown = {"unigram": "<unk>", "words": "[UNK]"}.get(name)
    return {index for token, index in TOKENIZERS[name].get_added_vocab().items() if token != unknown}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=SPELLED)
def test_no_text_yields_an_added_token(name, text):
    assert added(name).isdisjoint(PLAIN[name](text))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokenizer_itself_yields_added_tokens(name):
    """Without this the property above would hold of any tokenizer."""
    tokenizer = TOKENIZERS[name]
    for token, index in tokenizer.get_added_vocab().items():
        assert index in tokenizer.encode(f"x {token} x", add_special_tokens=False)
        assert index not in PLAIN[name](f"x {token} x") or token in ("<unk>", "[UNK]")


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=SPELLED)
def test_decoding_gives_the_text(name, text):
    decoded = TOKENIZERS[name].backend_tokenizer.decode(list(PLAIN[name](text)), skip_special_tokens=False)
    assert decoded == (text.replace("▁", " ") if name == "sentencepiece" else text)


@pytest.mark.parametrize("name", ["byte level", "sentencepiece"])
def test_ordinary_text_has_the_tokenizers_own_ids(name):
    text = "Turn 1: at (1, 2)\n######\n#_P_X#"
    assert list(PLAIN[name](text)) == TOKENIZERS[name].encode(text, add_special_tokens=False)
