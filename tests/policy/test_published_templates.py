"""Prompts have the ids of the whole conversation, rendered and tokenised by `apply_chat_template`."""

from dataclasses import asdict
from typing import Any

import pytest
from published_templates import ADDED, PUBLISHED, SPECIAL, published_tokenizer

from tsr_lightning.policy.chat import Chat
from tsr_lightning.trajectory import Message, Turn

EMPTY = "<think>\n\n</think>\n\n"
TOKENIZERS = {name: published_tokenizer(template) for name, template in PUBLISHED.items()}
CHATS = {name: Chat(tokenizer) for name, tokenizer in TOKENIZERS.items()}
OFF = {"enable_thinking": False}
FORMATS: dict[str, tuple[str, dict[str, Any], str]] = {  # template, its arguments, response prefix
    **{name: (name, {}, "") for name in PUBLISHED},
    "qwen3, off": ("qwen3", OFF, ""),
    "glm45, off": ("glm45", OFF, ""),
    "smollm3, off": ("smollm3", OFF, ""),
    "qwen3, prefix": ("qwen3", {}, "<think>"),
    "glm45, prefix": ("glm45", {}, "<think>"),
    "smollm3, prefix": ("smollm3", {}, "<think>"),
}
FORMATTED = {
    key: Chat(TOKENIZERS[name], template_arguments=arguments, response_prefix=prefix)
    for key, (name, arguments, prefix) in FORMATS.items()
}
USER, TOOL = Message("user", "Turn the box"), Message("tool", "box: 3")
RULES = Message("system", "You play.")
THOUGHT = "<think>\nthe box\n</think>\n\n<answer>Up</answer>"
RESPONSES = {
    "with reasoning": (THOUGHT, "<think>\nnow Down\n</think>\n\nDown", "<think>\n\n</think>\n\nLeft"),
    "without": ("Up", "<answer>Down</answer>", "Left"),
    "mixed": ("Up", THOUGHT, "Left\n</think>\n\nDown"),
    "with calls": ("<think>\nso\n</think>\n\n<tool_call>\nUp\n</tool_call>", "<tool_call> Up", "Up</think>"),
}
OBSERVATIONS: dict[str, list[list[Message]]] = {
    "users": [[RULES, USER], [USER], [USER], [USER]],
    "tools": [[RULES, USER], [TOOL], [TOOL, TOOL], [TOOL]],
    "tools, then a user, no system": [[USER], [TOOL], [USER], [TOOL]],
    "a tool, then a user's message": [[RULES, USER], [TOOL, USER], [TOOL], [USER]],
    "an example before, no system": [[USER, Message("assistant", THOUGHT), USER], [TOOL], [USER], [USER]],
}


def rendered(format: str, messages: list[Message]) -> list[int]:
    """By transformers itself, on the day that prompts show; the prefix follows it before it is tokenised."""
    name, arguments, prefix = FORMATS[format]
    text = TOKENIZERS[name].apply_chat_template(
        [asdict(message) for message in messages],
        tokenize=False,
        add_generation_prompt=True,
        chat_template=PUBLISHED[name].replace("strftime_now('%d %B %Y')", "'26 July 2024'"),
        **arguments,
    )
    assert isinstance(text, str)
    return TOKENIZERS[name].encode(text + prefix, add_special_tokens=False)


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("responses", RESPONSES)
@pytest.mark.parametrize("format", FORMATS)
def test_every_prompt_is_the_template_tokenised_whole(format: str, responses: str, observations: str):
    chat = FORMATTED[format]
    turns: list[Turn] = []
    whole: list[Message] = []
    for number, observed in enumerate(OBSERVATIONS[observations]):
        messages = tuple(observed)
        whole += messages
        prompt = chat.prompt(turns, messages)
        assert list(prompt) == rendered(format, whole)
        if number == 3:
            break
        text = RESPONSES[responses][number]
        response = chat.write(text, prompt)
        read = chat.read(response, prompt)
        assert read.endswith(text)
        assert read.removesuffix(text) in ("", EMPTY, "<think></think>")
        turns.append(Turn(prompt, response, (0.0,) * len(response), True, messages, read, 0.0, True, True, read))
        whole.append(Message("assistant", read))


# of glm-4-9b-chat: the token of the next role ends a response, and its end token is another
GLM4 = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def test_where_nothing_closes_a_response_the_next_role_ends_it():
    tokenizer = published_tokenizer(GLM4)
    chat = Chat(tokenizer)
    assert {tokenizer.convert_ids_to_tokens(index) for index in chat.end_ids} == {"<|user|>", tokenizer.eos_token}
    prompt = chat.prompt([], [USER])
    response = chat.write("Up", prompt)
    assert tokenizer.convert_ids_to_tokens(response[-1]) == "<|user|>"
    assert chat.read(response, prompt) == "Up"
    turn = Turn(prompt, response, (0.0,) * len(response), True, (USER,), "Up", 0.0, True, True, "Up")
    whole = [asdict(message) for message in (USER, Message("assistant", "Up"), USER)]
    text = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    assert list(chat.prompt([turn], [USER])) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_policys_text_has_added_tokens_and_no_control_token(name: str):
    tokenizer, chat = TOKENIZERS[name], CHATS[name]
    added = {tokenizer.convert_tokens_to_ids(token) for token in ADDED}
    special = {tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    for token in ADDED:
        assert chat.write(token)[:-1] == (tokenizer.convert_tokens_to_ids(token),)
    for token in SPECIAL:
        ids = chat.write(f"Up {token}<think>")[:-1]
        assert special.isdisjoint(ids)
        assert tokenizer.decode(list(ids)) == f"Up {token}<think>"

    def specials(spelled: str) -> int:
        text = f"Up {spelled} Down"
        past = Turn(chat.prompt([], [USER]), chat.write(text), (), True, (USER,), text, 0.0, True, True, text)
        example = Message("assistant", text)
        return sum(index in special for index in chat.prompt([past], [USER, example, USER]))

    assert {specials(token) for token in [*SPECIAL, "\ue0000\ue001", "\ue0009"]} == {specials("")}
    spelled = chat.prompt([], [Message("user", "".join(ADDED))])
    assert sum(index in added for index in spelled) == sum(index in added for index in chat.prompt([], [USER]))
