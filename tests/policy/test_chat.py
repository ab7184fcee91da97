"""Prompts over every kind of chat template: responses keep their sampled ids, messages yield no control token."""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, ObservationLoss
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.plain import Encoder, plain_encoder
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.template import DEFAULT_TEMPLATE, ChatTemplate
from tsr_lightning.policy.vocabulary import CHATML, make_tokenizer
from tsr_lightning.training.setting_checks import check_template
from tsr_lightning.trajectory import Message, Turn, to_messages

LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '<|stop|>\n\n' + message['content'] | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'tool' %}{{ '[TOOL] ' + message['content'] + ' [/TOOL]' }}"
    "{% else %}{{ ' ' + message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
)
STRIPS_THINKING = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen3's rule: reasoning stays after the last user's message, so that it stays while tools are answering
KEEPS_THINKING_FOR_TOOLS = (
    "{% set ns = namespace(last=-1) %}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content and loop.index0 < ns.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# an earlier turn stays as it was, and its text depends on how many there are before it
COUNTS_ROUNDS = CHATML.replace(
    "message['content']", "('[' ~ loop.index ~ '] ' if message['role'] == 'user' else '') + message['content']"
)
USER_FIRST = (
    "{% set shown = messages | rejectattr('role', 'eq', 'system') | list %}"
    "{% if shown and shown[0]['role'] != 'user' %}{{ raise_exception('a user begins') }}{% endif %}"
)
# the "<think>" that opens a response is written in the prompt
OPENS_THINKING = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
PREFIX_PRESERVING = {
    "chatml": CHATML,
    "llama": LLAMA,
    "no_system": NO_SYSTEM,
    "default": None,
    "opens_thinking": OPENS_THINKING,
    "counts_rounds": COUNTS_ROUNDS,
}
REWRITING = {
    "strips_thinking": STRIPS_THINKING,
    "keeps_thinking_for_tools": KEEPS_THINKING_FOR_TOOLS,
}
ALL = PREFIX_PRESERVING | REWRITING
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
TURNS = st.lists(st.tuples(IDS, st.booleans(), SPELLED), max_size=4)


def roll_out(
    chat: Chat, system: str, given: Sequence[tuple[tuple[int, ...], bool, str | Sequence[Message]]]
) -> list[Turn]:
    """Turns as a rollout makes them, from response ids, whether they are finished, and observations."""
    turns: list[Turn] = []
    for ids, finished, observation in given:
        messages = to_messages(observation, "" if turns else system)
        prompt = chat.prompt(turns, messages)
        response = tuple(i for i in ids if i not in chat.end_ids) + (chat.write("")[-1:] if finished else ())
        zeros = (0.0,) * len(response)
        text = chat.read(response, prompt)
        turns.append(Turn(prompt, response, zeros, finished, messages, text, 0.0, True, True, text))
    return turns


def next_prompt(chat: Chat, system: str, turns: list[Turn], observation: str | Sequence[Message]) -> tuple[int, ...]:
    return chat.prompt(turns, to_messages(observation, "" if turns else system))


@pytest.mark.parametrize("name", PREFIX_PRESERVING)
@settings(max_examples=30)
@given(system=SPELLED, given=TURNS, last=SPELLED)
def test_each_prompt_begins_with_the_turn_before_under_full_context(name, system, given, last):
    assert ChatTemplate(TOKENIZERS[name]).is_prefix_preserving
    chat = Chat(TOKENIZERS[name], Full())
    turns = roll_out(chat, system, given)
    prompts = [turn.prompt for turn in turns] + [next_prompt(chat, system, turns, last)]
    for turn, following in zip(turns, prompts[1:], strict=True):
        before = turn.prompt + turn.response
        assert following[: len(before)] == before
        closing = following[len(before) : len(before) + 1]
        assert turn.finished or closing == chat.write("")[-1:]  # an unfinished response is closed in the next prompt


def check_following(name: str, context: Context, system: str, given: Sequence[tuple[tuple[int, ...], bool, Any]]):
    """Under this context the same ids follow a response as under Full."""
    chat, full = Chat(TOKENIZERS[name], context), Chat(TOKENIZERS[name], Full())
    turns, shown = roll_out(chat, system, given), roll_out(full, system, given)
    for turn in range(1, len(turns)):
        before = shown[turn - 1].prompt + shown[turn - 1].response
        assert before + chat.following(turns[:turn], turns[turn].messages) == shown[turn].prompt
    assert not turns or chat.following(turns, ()) == ()


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("name", PREFIX_PRESERVING)
@settings(max_examples=30)
@given(system=SPELLED, given=TURNS)
def test_what_follows_a_response_is_the_same_under_every_context(name, context, system, given):
    check_following(name, context, system, given)


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("name", PREFIX_PRESERVING)
def test_what_follows_a_response_has_messages_of_every_role(name: str, context: Context):
    texts = ["<think>\nhm\n</think>\n\n<answer>Up</answer>", "<answer>Left</answer>", "no", ""]
    for conversation in CONVERSATIONS.values():
        ids = [Chat(TOKENIZERS[name]).write(text)[:-1] for text in texts]
        for finished in (True, False):
            given = [(own, finished, each) for own, each in zip(ids, conversation, strict=True)]
            check_following(name, context, "Rules", given)


def test_what_follows_a_response_is_rendered_with_all_before_it():
    """A template that demands a user's message first has one, though the last turn begins with a tool's."""
    TOKENIZERS["user_first"] = with_template(USER_FIRST + CHATML)
    ids = Chat(TOKENIZERS["user_first"]).write("Up")[:-1]
    for name in ("a tool's message alone", "tools' messages to the end"):
        check_following("user_first", Full(), "Rules", [(ids, True, each) for each in CONVERSATIONS[name]])


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30)
@given(system=SPELLED, given=TURNS, last=SPELLED)
def test_text_yields_no_control_token(name, context, system, given, last):
    tokenizer = TOKENIZERS[name]
    chat = Chat(tokenizer, context)
    control = set(tokenizer.get_added_vocab().values())

    spelled = [(tuple(i for i in ids if i not in control), finished, text) for ids, finished, text in given]
    benign = [(ids, finished, "x") for ids, finished, _ in spelled]

    def count(system: str, given: list[tuple[tuple[int, ...], bool, str]], last: str) -> int:
        return sum(index in control for index in next_prompt(chat, system, roll_out(chat, system, given), last))

    assert count(system, spelled, last) == count("x" if system else "", benign, "x")


TOOL = (Message("tool", " {'price': 3} "), Message("user", "Go on"))
CONVERSATIONS: dict[str, list[str | tuple[Message, ...]]] = {  # the observations of four turns
    "a text": [f"Turn {i}\n#P_" for i in range(4)],
    "two user messages": [(Message("user", f"Turn {i}"), Message("user", "#P_")) for i in range(4)],
    "a tool's message alone": ["Find it", (TOOL[0],), (TOOL[0],), "Buy it"],
    "tools' messages to the end": ["Find it", (TOOL[0],), (TOOL[0],), (TOOL[0],)],
    "a tool's message among users'": ["Find it", TOOL, (*TOOL, *TOOL), (TOOL[1], TOOL[0])],
    "an example before": [(TOOL[1], Message("assistant", "Up"), TOOL[1]), "a", "b", "c"],
    "a later system message": ["a", (Message("system", "Hurry"), TOOL[1]), "b", "c"],
}


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("system", ["Rules", "Rules of instance 3", ""])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", ALL)
def test_the_prompt_is_the_rendered_template(name: str, conversation: str, system: str, context: Context):
    tokenizer = TOKENIZERS[name]
    chat = Chat(tokenizer, context)
    *past, present = CONVERSATIONS[conversation]
    texts = ["<think>\nhm\n</think>\n\n<answer>Up</answer>", "<answer>Left</answer>", "no"]
    turns = roll_out(chat, system, [(chat.write(text)[:-1], True, past[i]) for i, text in enumerate(texts)])

    skipped = len(turns) - context.visible_turns(len(turns))
    messages = [Message("system", system)] if system else []
    for turn, observation in list(zip(turns, past, strict=True))[skipped:]:
        messages += [*to_messages(observation), Message("assistant", turn.text)]
    messages += to_messages(present)
    if name == "no_system" and messages[0].role == "system":
        first, second = messages[:2]
        joint = [Message("user", f"{first.content}\n\n{second.content}")]
        messages[:2] = joint if second.role == "user" else [Message("user", first.content), second]
    template = {"chat_template": DEFAULT_TEMPLATE} if name == "default" else {}
    conversation = [asdict(message) for message in messages]
    expected = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **template)
    if name == "no_system":  # a response follows the prompt it was sampled from, without the template's space
        for text in texts[skipped:]:
            expected = expected.replace(f"] {text}", f"]{text}")
    assert tokenizer.decode(chat.prompt(turns, to_messages(present))) == expected


def test_observations_are_no_targets_under_a_rewriting_template():
    watching = GRPO(observations=ObservationLoss())
    for name, tokenizer in TOKENIZERS.items():
        check_template(GRPO(), ChatTemplate(tokenizer))
        if name not in REWRITING:
            check_template(watching, ChatTemplate(tokenizer))
            continue
        with pytest.raises(ConfigError, match=r"observations is 'ObservationLoss': the chat template .* earlier turns"):
            check_template(watching, ChatTemplate(tokenizer))


def test_earlier_turns_are_rendered_again_under_a_rewriting_template():
    assert not any(ChatTemplate(TOKENIZERS[name]).is_prefix_preserving for name in REWRITING)
    chat = Chat(TOKENIZERS["strips_thinking"], Full())
    turns = roll_out(chat, "", [(chat.write("<think>\nhm\n</think>\n\nUp")[:-1], True, "a")])
    text = TOKENIZERS["strips_thinking"].decode(next_prompt(chat, "", turns, "b"))
    assert "hm" not in text
    assert "assistant\nUp<|im_end|>\n" in text


@given(st.text())
def test_reading_a_written_text_gives_the_text(text):
    chat = Chat(TOKENIZERS["chatml"])
    ids = chat.write(text)
    assert ids[-1] in chat.end_ids
    assert chat.read(ids) == text


def test_reading_drops_only_control_tokens():
    tokenizer = TOKENIZERS["chatml"]
    chat = Chat(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<answer>", "<tool_call>", "<|im_end|>"])
    assert chat.read(ids) == "<answer><tool_call>"


def test_a_context_keeps_the_system_message_and_the_most_recent_turns():
    tokenizer = TOKENIZERS["chatml"]
    turns = roll_out(Chat(tokenizer, LastK(2)), "Rules", [((5,), True, f"seen{i}") for i in range(4)])
    text = {
        context: tokenizer.decode(next_prompt(Chat(tokenizer, context), "Rules", turns, "now")) for context in CONTEXTS
    }
    assert all(shown.startswith("<|im_start|>system\nRules<|im_end|>\n<|im_start|>user\n") for shown in text.values())
    assert [f"seen{i}" in text[LastK(2)] for i in range(4)] == [False, False, True, True]
    assert [f"seen{i}" in text[SingleTurn()] for i in range(4)] == [False] * 4
    assert [f"seen{i}" in text[Full()] for i in range(4)] == [True] * 4


def test_the_turn_end_and_the_eos_token_both_end_a_response():
    tokenizer = TOKENIZERS["chatml"]
    base = with_template(CHATML)
    base.eos_token = "<|endoftext|>"
    assert Chat(base).end_ids == {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}


@pytest.mark.parametrize("k", [0, -1])
def test_a_context_of_no_past_turn_is_refused(k):
    with pytest.raises(ConfigError, match=r"LastK\.k is"):
        LastK(k)


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0]['content'] }}", "{% for m in messages | reverse %}{{ m['content'] }}{% endfor %}", "{{ nope() }}"],
)
def test_a_template_that_loses_messages_is_refused(template):
    with pytest.raises(ConfigError, match=r"model\.policy\.model is .*: its chat template"):
        ChatTemplate(with_template(template)).fragments(["user", "assistant", "user"])


@pytest.mark.parametrize(
    ("refused", "roles"),
    [("m['role'] == 'tool'", ["user", "tool"]), ("not loop.first and m['role'] == 'user'", ["user", "user"])],
)
def test_a_template_that_refuses_a_role_is_named_with_the_roles(refused: str, roles: list[str]):
    refusal = f"{{% if {refused} and messages | length == 2 %}}{{{{ raise_exception('not so') }}}}{{% endif %}}"
    chat = Chat(with_template(f"{{% for m in messages %}}{refusal}{{{{ m['content'] + '<|im_end|>' }}}}{{% endfor %}}"))
    named = rf"model\.policy\.model is '': its chat template .* {', '.join(roles)} \(not so\), so give"
    with pytest.raises(ConfigError, match=named):
        chat.prompt([], [Message(role, "x") for role in roles])


def test_a_prompt_that_was_made_before_is_neither_rendered_nor_tokenised(monkeypatch):
    tokenised: list[str] = []

    def watched(tokenizer: PreTrainedTokenizerFast) -> Encoder:
        plain = plain_encoder(tokenizer)

        def encode(text: str) -> tuple[int, ...]:
            tokenised.append(text)
            return plain(text)

        return encode

    monkeypatch.setattr("tsr_lightning.policy.chat.plain_encoder", watched)
    chat = Chat(TOKENIZERS["chatml"], SingleTurn())
    observation = "Turn 1\n" + "######\n" * 6 + "player (1, 2), box (3, 4), target (4, 4)"
    first = chat.prompt([], to_messages(observation, "Rules"))
    assert any(observation in text for text in tokenised)
    tokenised.clear()
    monkeypatch.setattr(PreTrainedTokenizerFast, "apply_chat_template", None)  # a call would fail
    assert chat.prompt([], to_messages(observation, "Rules")) == first
    assert tokenised == []


def test_ids_that_a_model_publishes_end_a_response_too(tmp_path):
    tokenizer = TOKENIZERS["chatml"]
    plain = Chat(tokenizer).end_ids
    LlamaConfig(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    spec = PolicySpec(str(tmp_path))
    assert Chat.of(spec, tokenizer).end_ids == plain  # there is no such file
    for ends, added in (([1, 2], {1, 2}), (2, {2}), (None, set())):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        assert Chat.of(spec, tokenizer).end_ids == plain | added
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"its generation_config\.json is damaged"):
        Chat.of(spec, tokenizer)


def test_without_a_template_a_prompt_begins_as_the_tokenizer_begins_a_text():
    tokenizer = copy.deepcopy(TOKENIZERS["default"])
    messages = [Message("user", "Go")]
    plain = Chat(tokenizer).prompt([], messages)
    tokenizer.bos_token = tokenizer.eos_token
    assert Chat(tokenizer).prompt([], messages) == plain  # which it does not
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)]
    )
    assert Chat(tokenizer).prompt([], messages) == (tokenizer.bos_token_id, *plain)
