"""Tokens in, tokens out, over every kind of chat template: responses stay ids, observations stay text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.vocabulary import CHATML, make_tokenizer
from tsr_lightning.trajectory import Turn

LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '<|stop|>\n\n' + message['content'] | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
)
STRIPS_THINKING = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# not faithful to what was generated: the thought that opens a response is gone from the history
OPENS_THINKING = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
EXTENDING = {"chatml": CHATML, "llama": LLAMA, "no_system": NO_SYSTEM, "default": None}
REWRITING = {"strips_thinking": STRIPS_THINKING, "opens_thinking": OPENS_THINKING}
ALL = EXTENDING | REWRITING
CONTEXTS = [Full(), LastK(1), LastK(2), SingleTurn()]


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer(["Turn 1\n###\n#P_\n<think>go Up</think><answer>Up || Left</answer>"] * 2)
    tokenizer.add_tokens(["<tool_call>", AddedToken("<|start|>", special=True), AddedToken("<|stop|>", special=True)])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = {name: with_template(template) for name, template in ALL.items()}
CONTROL = sorted(TOKENIZERS["chatml"].get_added_vocab())
SPELLED = st.lists(st.text(max_size=8) | st.sampled_from([*CONTROL, " ", "\n"]), max_size=5).map("".join)
IDS = st.lists(st.integers(0, 270), max_size=6).map(tuple)  # any ids at all, valid UTF-8 or not
SAID = st.lists(st.tuples(IDS, st.booleans(), SPELLED), max_size=4)


def play(chat: Chat, system: str, said: list[tuple[tuple[int, ...], bool, str]]) -> list[Turn]:
    """Turns as a rollout makes them: each with the prompt that it was answered to."""
    turns: list[Turn] = []
    for ids, finished, observation in said:
        prompt = chat.prompt(system, turns, observation)
        response = tuple(i for i in ids if i not in chat.end_ids) + (chat.write("")[-1:] if finished else ())
        zeros = (0.0,) * len(response)
        turns.append(Turn(prompt, response, zeros, finished, observation, chat.read(response), 0.0, True, True))
    return turns


@pytest.mark.parametrize("name", EXTENDING)
@settings(max_examples=30)
@given(system=SPELLED, said=SAID, last=SPELLED)
def test_full_context_only_ever_grows(name, system, said, last):
    chat = Chat(TOKENIZERS[name], Full())
    assert chat.extends
    turns = play(chat, system, said)
    prompts = [turn.prompt for turn in turns] + [chat.prompt(system, turns, last)]
    for turn, following in zip(turns, prompts[1:], strict=True):
        before = turn.prompt + turn.response
        assert following[: len(before)] == before
        closing = following[len(before) : len(before) + 1]
        assert turn.finished or closing == chat.write("")[-1:]  # what is unfinished is closed, and not by the policy


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30)
@given(system=SPELLED, said=SAID, last=SPELLED)
def test_text_spells_no_control_token(name, context, system, said, last):
    tokenizer = TOKENIZERS[name]
    chat = Chat(tokenizer, context)
    control = set(tokenizer.get_added_vocab().values())

    spelled = [(tuple(i for i in ids if i not in control), finished, text) for ids, finished, text in said]
    benign = [(ids, finished, "x") for ids, finished, _ in spelled]

    def count(system: str, said: list[tuple[tuple[int, ...], bool, str]], last: str) -> int:
        return sum(index in control for index in chat.prompt(system, play(chat, system, said), last))

    assert count(system, spelled, last) == count("x" if system else "", benign, "x")


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_prompt_is_what_the_template_says(name, context: Context):
    tokenizer = TOKENIZERS[name]
    chat = Chat(tokenizer, context)
    texts = ["<think>\nhm\n</think>\n\n<answer>Up</answer>", "<answer>Left</answer>", "no"]
    said = [(chat.write(text)[:-1], True, f"Turn {i}\n#P_") for i, text in enumerate(texts)]
    turns = play(chat, "Rules", said)
    kept = list(zip(texts, said, strict=True))[len(said) - context.kept(len(said)) :]

    system_of = {"role": "system", "content": "Rules"}
    messages = [] if name == "no_system" else [system_of]
    for text, (_, _, observation) in kept:
        messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": text}]
    messages.append({"role": "user", "content": "Turn 3"})
    if name == "no_system":
        messages[0] = {"role": "user", "content": "Rules\n\n" + messages[0]["content"]}
    template = {"chat_template": chat._template._template} if name == "default" else {}
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template)
    if name == "no_system":  # the response stands where it was sampled, without the blank that the template writes
        expected = expected.replace("[/INST] ", "[/INST]")
    assert tokenizer.decode(chat.prompt("Rules", turns, "Turn 3")) == expected


def test_a_template_that_rewrites_is_seen():
    assert not any(Chat(TOKENIZERS[name], Full()).extends for name in REWRITING)
    chat = Chat(TOKENIZERS["strips_thinking"], Full())
    turns = play(chat, "", [(chat.write("<think>\nhm\n</think>\n\nUp")[:-1], True, "a")])
    text = TOKENIZERS["strips_thinking"].decode(chat.prompt("", turns, "b"))
    assert "hm" not in text
    assert "assistant\nUp<|im_end|>\n" in text


@given(st.text())
def test_write_and_read_lose_nothing(text):
    chat = Chat(TOKENIZERS["chatml"])
    ids = chat.write(text)
    assert ids[-1] in chat.end_ids
    assert chat.read(ids) == text


def test_read_drops_control_tokens_alone():
    tokenizer = TOKENIZERS["chatml"]
    chat = Chat(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<answer>", "<tool_call>", "<|im_end|>"])
    assert chat.read(ids) == "<answer><tool_call>"


def test_a_cut_context_keeps_system_and_the_last_turns():
    tokenizer = TOKENIZERS["chatml"]
    turns = play(Chat(tokenizer, LastK(2)), "Rules", [((5,), True, f"seen{i}") for i in range(4)])
    text = {context: tokenizer.decode(Chat(tokenizer, context).prompt("Rules", turns, "now")) for context in CONTEXTS}
    assert all(shown.startswith("<|im_start|>system\nRules<|im_end|>\n<|im_start|>user\n") for shown in text.values())
    assert [f"seen{i}" in text[LastK(2)] for i in range(4)] == [False, False, True, True]
    assert [f"seen{i}" in text[SingleTurn()] for i in range(4)] == [False] * 4
    assert [f"seen{i}" in text[Full()] for i in range(4)] == [True] * 4
    assert not Chat(tokenizer, LastK(2)).extends


def test_a_base_model_may_end_with_either_token():
    tokenizer = TOKENIZERS["chatml"]
    base = with_template(CHATML)
    base.eos_token = "<|endoftext|>"
    assert Chat(base).end_ids == {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}


@pytest.mark.parametrize("k", [0, -1])
def test_a_context_of_nothing_is_refused(k):
    with pytest.raises(ConfigError, match=r"data\.context\.k is"):
        LastK(k)


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0]['content'] }}", "{% for m in messages | reverse %}{{ m['content'] }}{% endfor %}", "{{ nope() }}"],
)
def test_a_template_that_loses_messages_is_refused(template):
    with pytest.raises(ConfigError, match="chat template that"):
        Chat(with_template(template)).prompt("", [], "x") and Chat(with_template(template))._layout(1, False)


def test_a_remembered_prompt_is_fast():
    chat = Chat(TOKENIZERS["chatml"], SingleTurn())
    observation = "Turn 1\n" + "######\n" * 6 + "player (1, 2), box (3, 4), target (4, 4)"
    chat.prompt("Rules", [], observation)
    best = min(_seconds(lambda: chat.prompt("Rules", [], observation)) for _ in range(200))
    assert best < 50e-6


def _seconds(call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
