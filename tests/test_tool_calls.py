"""Calls are read as chat templates write them, and what cannot be read is a call with a problem."""

import random
from typing import Any, get_args

import pytest

from tsr_lightning.tool_calls import CALL_FORMATS, ONLY, Call, CallFormatName, calls_in

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"command": "ls"},
    {"command": 'echo "a\\n</tool_call>" # é {[', "n": 3, "deep": {"x": [1, None, True]}},
    {"text": "two\nlines\n\n  and more  "},
]
HERMES = '<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call>'
XML = "<tool_call>\n<function=add>\n<parameter=number>\n1\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("format", ["hermes", "xml", "json"])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_what_is_written_is_read(format: CallFormatName, arguments: dict[str, Any]):
    text = CALL_FORMATS[format].write("add", arguments)
    [call] = calls_in(f"<think>\n{HERMES}\n</think>\n\n{text}", format)
    assert (call.name, call.problem) == ("add", "")
    spelled = {key: value for key, value in arguments.items() if isinstance(value, str)}
    assert dict(call.arguments) == arguments if format != "xml" else spelled.items() <= call.arguments.items()


def test_several_calls_are_read_in_their_order():
    assert [call.arguments for call in calls_in(f"I see.\n{HERMES}\n{HERMES.replace('1', '2')}", "hermes")] == [
        {"number": 1},
        {"number": 2},
    ]
    listed = '<tool_call>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]</tool_call>'
    assert [call.name for call in calls_in(listed, "hermes")] == ["a", "b"]
    assert [call.arguments for call in calls_in(f"{XML}\n{XML.replace('1', '2')}", "xml")] == [
        {"number": "1"},
        {"number": "2"},
    ]
    both = '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}'
    assert [call.name for call in calls_in(both, "json")] == ["a", "b"]


def test_one_fenced_block_is_a_call_of_its_only_argument():
    [call] = calls_in("I look.\n```bash\nls -l\ncat x\n```\nSo.", "fenced")
    assert call == Call("bash", {ONLY: "ls -l\ncat x"}, spelled=True)
    [two] = calls_in("```bash\na\n```\n```bash\nb\n```", "fenced")
    assert "not 2" in two.problem
    assert calls_in("```submit\n```", "fenced") == [Call("submit", {}, spelled=True)]


def test_a_fenced_block_that_names_no_tool_is_text_beside_one_that_does():
    """As in mini-swe-agent, which counts its own blocks alone."""
    quoted = "Look:\n```python\nx = 1\n```\nso\n```bash\nls\n```"
    assert calls_in(quoted, "fenced", ("bash", "submit")) == [Call("bash", {ONLY: "ls"}, spelled=True)]
    [unknown] = calls_in("```python\nx = 1\n```", "fenced", ("bash", "submit"))
    assert unknown.name == "python"
    [two] = calls_in("```bash\na\n```\n```submit\n```", "fenced", ("bash", "submit"))
    assert "not 2" in two.problem


def test_a_call_may_quote_the_mark_of_reasoning():
    command = "grep -n '<think>' a.py"
    for format in ("hermes", "xml", "json"):
        [call] = calls_in(CALL_FORMATS[format].write("bash", {"command": command}), format)
        assert (dict(call.arguments), call.problem) == ({"command": command}, "")
    assert calls_in(f"```bash\n{command}\n```", "fenced") == [Call("bash", {ONLY: command}, spelled=True)]


@pytest.mark.parametrize("piece", ["\n", "```a\n", "<function=", "<parameter=", "<tool_call>", "<think>", "{", "```\n"])
@pytest.mark.parametrize("format", get_args(CallFormatName))
def test_a_long_response_takes_no_long_time(format: CallFormatName, piece: str):
    """A policy may say one thing again and again; quadratic time takes minutes."""
    calls_in(piece * (400_000 // len(piece)), format)
    calls_in(f"<function=a>{piece * (400_000 // len(piece))}</function>", format)


@pytest.mark.parametrize(
    ("format", "response", "problem"),
    [
        ("hermes", '<tool_call>\n{"name": "add", "argum', "not JSON"),
        ("hermes", "<tool_call>", "not JSON"),
        ("hermes", "<tool_call> 3 </tool_call>", "JSON object"),
        ("hermes", '<tool_call>{"name": "add", "arguments": 3}</tool_call>', "JSON object"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"x": NaN}}</tool_call>', "NaN"),
        ("hermes", "<tool_call>" + "[" * 100_000, "not JSON"),
        ("xml", "<tool_call>\nadd\n</tool_call>", "no <function=name>"),
        ("xml", "<tool_call>\n<function=add>\n<parameter=x>\n1", "no </function>"),
        ("json", '{"name": "add", ', "not JSON"),
        ("json", "{}", "JSON object"),
    ],
)
def test_what_cannot_be_read_is_a_call_with_a_problem(format: CallFormatName, response: str, problem: str):
    [call] = calls_in(response, format)
    assert problem in call.problem


@pytest.mark.parametrize("format", get_args(CallFormatName))
@pytest.mark.parametrize("response", ["", "Hello.", "<think>", f"<think>{HERMES}", f"<think>{XML}</think> no", "{"[:0]])
def test_no_call_is_found_where_there_is_none(format: CallFormatName, response: str):
    assert calls_in(response, format) == []


@pytest.mark.parametrize("format", get_args(CallFormatName))
def test_any_text_is_read(format: CallFormatName):
    """Calls or problems, never an error; in a time that does not explode."""
    draw = random.Random(0)
    pieces = ["<tool_call>", "</tool_call>", "<function=a>", "</function>", "<parameter=b>", HERMES, XML, "```bash\n"]
    pieces += ["```\n", "\n", "1", "<think>", "</think>", "\\u12", ";", '{"name": "a"}', ",", "{", "}", '"name": ', '"']
    for _ in range(2000):
        for call in calls_in("".join(draw.choice(pieces) for _ in range(draw.randint(0, 20))), format):
            assert isinstance(call, Call)
