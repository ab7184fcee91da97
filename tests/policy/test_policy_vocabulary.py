"""The tokenizer of a new model: lossless, one token per symbol, deterministic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tsr_lightning.policy.vocabulary import make_tokenizer

TEXTS = [
    "Turn 1:\nState:\n######\n#_P_O#\n#_√X_#\nPlayer (1, 2), box (3, 4).",
    "You act: <think>push the box Up</think><answer>Up || Right || Down</answer>",
] * 3
TOKENIZER = make_tokenizer(TEXTS)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([index]) for index in TOKENIZER.encode(text)]


@given(st.text())
def test_any_text_is_encoded_without_loss(text):
    ids = TOKENIZER.backend_tokenizer.encode(text, add_special_tokens=False).ids
    if not any(special in text for special in TOKENIZER.all_special_tokens):
        assert TOKENIZER.decode(ids) == text


def test_symbols_words_and_tags_are_single_tokens():
    assert pieces("#_O√XPSG#\n") == [*"#_O√XPSG#\n"]
    assert pieces("(12, 34).") == [*"(12, 34)."]
    assert pieces("<think>push the box Up</think>") == ["<think>", "push", " the", " box", " Up", "</think>"]
    assert pieces("<answer>Up || Right||Down</answer>") == [
        "<answer>",
        "Up",
        " ||",
        " Right",
        "||",
        "Down",
        "</answer>",
    ]


def test_symbols_and_tags_are_in_the_vocabulary_without_any_text():
    bare = make_tokenizer([])
    assert len(bare.encode("√G<answer></answer><think></think>")) == 6


def test_the_order_of_texts_does_not_matter():
    assert make_tokenizer(TEXTS[::-1]).backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()


def test_the_vocabulary_is_at_most_the_given_size():
    many = ["".join(chr(97 + (i // 26**j) % 26) for j in range(3)) + "zz " for i in range(2000)]
    assert len(make_tokenizer(many)) == 1024
    assert len(make_tokenizer(many, size=512)) == 512
    assert max(make_tokenizer(many, size=512).get_vocab().values()) == 511


def test_special_tokens_and_chat_template_are_saved(tmp_path):
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Turn 1"}]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nTurn 1<|im_end|>\n<|im_start|>assistant\n"  # without a system message
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.all_special_ids == TOKENIZER.all_special_ids


@pytest.mark.parametrize("text", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_a_control_token_is_one_id(text):
    assert len(TOKENIZER.encode(text)) == 1
