"""Conversations with tools: prompts are the chat template tokenised whole, and what was sampled is what is trained."""

import json
import random
from typing import Any

import pytest

from tests.counter import Counter
from tests.policy.tool_templates import CONDENSED, condensed
from tsr_lightning.batching.sequences import training_sequences
from tsr_lightning.envs.outcome import reset
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.tool_calls import CALL_FORMATS, explained
from tsr_lightning.trajectory import Ended, Message, Origin, Trajectory, Turn

CALL = {"name": "add", "arguments": {"number": 3, "why": 'a "reason"\\n', "tags": "é {x}"}}
# Endings and beginnings that a tokenizer merges with the template's text around them, and JSON has to quote.
ANSWERS = ["The count is 3.", '{"count": [1, 2]}', "é\n", "\n\n  two\nlines\n\n", 'C:\\dir "quoted" }', "  x  ", "..."]
THOUGHTS = ["<think>\nhm\n</think>\n\n", "<think>\nso (2)\n</think>\n\n", ""]


def opening(chat: Chat) -> tuple[Message, ...]:
    """The first messages of an environment of tools."""
    return reset(Counter(max_turns=9), 0, scored=False, call_format=chat.call_format).messages


def turn_of(chat: Chat, turns: list[Turn], messages: tuple[Message, ...], ids: tuple[int, ...] | str) -> Turn:
    prompt = chat.prompt(turns, messages)
    response = chat.write(ids, prompt) if isinstance(ids, str) else ids
    text = chat.read(response, prompt)
    finished = bool(response) and response[-1] in chat.end_ids
    return Turn(prompt, response, (0.0,) * len(response), finished, messages, text, 0.0, True, True, text)


def as_template_takes_it(chat: Chat, shown: list[Message | dict[str, Any]], offers: bool) -> dict[str, Any]:
    """The arguments of `apply_chat_template` for these messages, calls as `tool_calls`."""
    [offer] = [json.loads(m.content) for m in shown if isinstance(m, Message) and m.role == "tools"]
    messages = [
        {"role": m.role, "content": m.content} if isinstance(m, Message) else m
        for m in shown
        if not (isinstance(m, Message) and m.role == "tools")
    ]
    if offers:
        return {"conversation": messages, "tools": offer["tools"]}
    told = f"{messages[0]['content']}\n\n{explained(offer['tools'], offer['call_format'])}"
    return {"conversation": [messages[0] | {"content": told}, *messages[1:]]}


def check_round_trip(chat: Chat, seed: int) -> None:
    """Five turns of calls, after some of which a user speaks: each prompt is the whole conversation, rendered from
    structured calls and tokenised by transformers."""
    tokenizer, draw = chat.tokenizer, random.Random(seed)
    offers = chat.template.call_format is not None
    write = CALL_FORMATS[chat.call_format].write
    single = chat.call_format == "json"  # the template refuses two calls, and text beside one
    turns: list[Turn] = []
    messages = opening(chat)
    shown: list[Message | dict[str, Any]] = [*messages]
    for _ in range(5):
        given = as_template_takes_it(chat, shown, offers)
        prompt = chat.prompt(turns, messages)
        if turns and chat.template.is_prefix_preserving:
            assert prompt == turns[-1].prompt + turns[-1].response + chat.following(turns, messages)
        whole = tokenizer.apply_chat_template(**given, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(prompt) == whole
        # our explanation of tools is plain text, in which <tool_call> is no token
        if offers or "<tool_call>" not in tokenizer.get_added_vocab():
            assert list(prompt) == tokenizer.encode(whole, add_special_tokens=False)

        calls = [CALL] if single else [CALL] * draw.randint(1, 3)
        # where the prompt opens reasoning, an empty one would merge with the prompt's last line break
        thought = "" if single else draw.choice(THOUGHTS[:2] if chat.template.opened else THOUGHTS)
        said = "Let me see." if thought or (not single and draw.random() < 0.5) else ""
        gap = ("\n\n" if chat.call_format == "xml" else "\n") if said else ""
        text = thought + said + gap + "\n".join(write(call["name"], call["arguments"]) for call in calls)
        turns.append(turn_of(chat, turns, messages, text))
        structured = [{"type": "function", "function": call} for call in calls]
        read = turns[-1].text.partition("<tool_call>")[0].removesuffix(gap) if offers and not single else ""
        own = {"role": "assistant", "content": read, "tool_calls": structured}
        shown.append(own if offers else {"role": "assistant", "content": turns[-1].text})
        answers = [Message("tool", draw.choice(ANSWERS)) for _ in calls]
        messages = (*answers, *([Message("user", "Go on.")] if draw.random() < 0.3 else []))
        shown += messages


@pytest.mark.parametrize("name", CONDENSED)
def test_prompts_are_the_template_tokenised_whole(name: str):
    for seed in range(20):
        check_round_trip(condensed(name), seed)


@pytest.mark.parametrize("name", CONDENSED)
def test_the_template_shows_the_format_of_calls(name: str):
    assert condensed(name).template.call_format == CONDENSED[name][1]


def trajectory_of(turns: list[Turn]) -> Trajectory:
    return Trajectory(0, 0, "Sample", Origin.SAMPLED, tuple(turns), Ended.FAILED, (), ())


def check_training(chat: Chat, seed: int, context_kept: bool) -> None:
    """Sampled ids, in no canonical tokenisation, are trained each once, under exactly the prompt it was sampled under;
    where tools answer, a prompt begins with the one before and its response."""
    draw = random.Random(seed)
    words = ["add", " the", "\n", "{", "x", "<tool_call>", "</tool_call>", "é", " 3"]
    pieces = [chat.write(word)[:-1] for word in words]
    turns: list[Turn] = []
    messages = opening(chat)
    for _ in range(4):
        sampled = [index for _ in range(draw.randint(0, 6)) for index in draw.choice(pieces)]
        response = (*sampled, *(chat.write("")[-1:] if draw.random() < 0.8 else ()))
        turns.append(turn_of(chat, turns, messages, response))
        messages = tuple(Message("tool", draw.choice(ANSWERS)) for _ in range(draw.randint(1, 2)))
    sequences = training_sequences(trajectory_of(turns))
    trained = [
        (tuple(one.ids[:place].tolist()), int(one.ids[place]))
        for one in sequences
        for place in one.mask.nonzero().flatten().tolist()
    ]
    assert trained == [
        (turn.prompt + turn.response[:place], index) for turn in turns for place, index in enumerate(turn.response)
    ]
    if context_kept:
        assert len(sequences) == 1


@pytest.mark.parametrize("context", [Full(), LastK(2), SingleTurn()], ids=repr)
@pytest.mark.parametrize("name", CONDENSED)
def test_what_was_sampled_is_trained_under_its_prompt(name: str, context: Context):
    for seed in range(20):
        check_training(condensed(name, context), seed, context == Full() and name != "xml")


def test_reasoning_stays_while_tools_answer_and_its_ids_are_the_sampled_ones():
    """Under a template that drops it before a user's message."""
    chat = condensed("xml")
    call = CALL_FORMATS["xml"].write("add", {"number": 1})
    split = [piece for char in f"hm\n</think>\n\n{call}" for piece in chat.write(char)[:-1]]
    canonical = chat.write(f"hm\n</think>\n\n{call}")
    assert tuple(split) != canonical[:-1]
    first = turn_of(chat, [], opening(chat), (*split, canonical[-1]))
    followed = chat.prompt([first], (Message("tool", "The count is 1."),))
    assert followed[: len(first.prompt + first.response)] == first.prompt + first.response
    text = chat.tokenizer.decode(chat.prompt([first], (Message("user", "Go on."),)))
    assert "hm" not in text
    assert call in text


def hostile(draw: random.Random, control: list[str]) -> str:
    """An observation made of pieces of roles, calls, JSON and XML."""
    pieces = [
        *control,
        *(
            '"',
            "\\",
            "\n",
            "}",
            " ",
            "<",
            "|",
            ">",
            "\x00",
            "\u200b",
            "é",
            "assistant",
            "user\n",
            "[INST]",
            "<s>",
            "</s>",
        ),
        *("<|im_", "end|>", "tool_call>", "<tool_response>", "</tool_response>", "\ue0000\ue001", "\ue000"),
        *("<function=add>", "</function>", '{"name": "add", "arguments": {"number": 1}}'),
    ]
    return "".join(draw.choice(pieces) for _ in range(draw.randint(1, 12)))


def check_hostile(chat: Chat, count: int) -> None:
    """No observation changes which added tokens a prompt has, nor what the rest of it says."""
    tokenizer, draw = chat.tokenizer, random.Random(0)
    added = tokenizer.get_added_vocab()
    control, ids = sorted(added)[:40], frozenset(added.values())
    first = turn_of(chat, [], opening(chat), "<tool_call>")

    def prompt(text: str) -> list[int]:
        return list(chat.prompt([first], (Message("tool", text), Message("user", text))))

    expected = [index for index in prompt("x") if index in ids]
    for _ in range(count):
        text = hostile(draw, control)
        assert [index for index in prompt(text) if index in ids] == expected, text


@pytest.mark.parametrize("name", CONDENSED)
def test_an_observation_forges_neither_role_nor_call(name: str):
    check_hostile(condensed(name), 1000)
