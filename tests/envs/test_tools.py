"""Tools, and environments that are played by calling them."""

import json
from typing import Any, Literal

import pytest

from tests.counter import Counter
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.playing import first_demonstration, valid_response
from tsr_lightning.envs.process import process_env
from tsr_lightning.envs.sample_texts import sample_observations
from tsr_lightning.envs.tools import OffersTools, RefusedCall, Tool
from tsr_lightning.errors import ConfigError
from tsr_lightning.search.strategies import Expert
from tsr_lightning.tool_calls import CALL_FORMATS, Call, CallFormatName, calls_in

ADD = '<tool_call>\n{"name": "add", "arguments": {"number": %s}}\n</tool_call>'


def act(command: str, times: int = 1, way: Literal["a", "b"] = "a", marks: list[int] = []) -> str:  # noqa: B006
    """Acts.

    Args:
        command: what is done.
        times: how often.
        way: in which way.
        marks: what is noted.
    """
    return f"{command} {times} {way} {marks}"


def test_the_schema_is_that_of_transformers():
    schema = Tool(act).schema()["function"]
    assert (schema["name"], schema["description"]) == ("act", "Acts.")
    assert schema["parameters"]["required"] == ["command"]
    assert schema["parameters"]["properties"]["marks"] == {
        "type": "array",
        "items": {"type": "integer"},
        "description": "what is noted.",
    }
    assert list(Tool(Counter.add).schema()["function"]["parameters"]["properties"]) == ["number"]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "'command' is missing"),
        ({"command": 3}, "'command' is wrong: input should be a valid string"),
        ({"command": "x", "times": "3"}, "'times' is wrong: input should be a valid integer"),
        ({"command": "x", "times": True}, "'times' is wrong"),
        ({"command": "x", "way": "c"}, "'way' is wrong: input should be 'a' or 'b'"),
        ({"command": "x", "marks": [1, "2"]}, "'marks.1' is wrong"),
        ({"command": "x", "other": 1}, "no argument 'other'"),
        ({"command": "\ud800"}, "^the arguments hold half of a surrogate pair, which is no character$"),
        ({"marks": nested(300)}, "^the arguments are nested too deeply$"),
        ({"marks": nested(100_000)}, "^the arguments are nested too deeply$"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], problem: str):
    with pytest.raises(RefusedCall, match=problem):
        Tool(act).arguments(Call("act", arguments))


def test_arguments_without_types_are_read_as_the_tool_asks():
    spelled = Call("act", {"command": "3", "times": "3", "marks": "[1, 2]"}, spelled=True)
    assert Tool(act).arguments(spelled) == {"command": "3", "times": 3, "marks": [1, 2]}
    with pytest.raises(RefusedCall, match="'times' is wrong"):
        Tool(act).arguments(Call("act", {"command": "x", "times": "three"}, spelled=True))


def no_hint(command, times: int = 1) -> str:
    """Acts."""
    return ""


def no_docstring(command: str) -> str:
    return ""


def odd_hint(command: Call, others: object) -> str:
    """Acts."""
    return ""


def any_names(**names: str) -> str:
    """Acts."""
    return ""


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (no_hint, "the tool 'no_hint' has no type hint for 'command'; give one, such as command: str"),
        (no_docstring, "the tool 'no_docstring' needs a docstring"),
        (odd_hint, "the tool 'odd_hint' "),
        (any_names, r"the tool 'any_names' takes \*\*names: str; name each argument"),
    ],
)
def test_a_function_that_is_no_tool_is_refused_in_one_sentence(function: Any, sentence: str):
    with pytest.raises(ConfigError, match=sentence) as refused:
        Tool(function).schema()
    assert "\n" not in str(refused.value)


def test_the_action_is_what_is_called_whatever_is_said_around_it():
    actions = set()
    for response in (ADD % 1, "<think>One more.</think>\n" + ADD % 1, "I add one.\n" + ADD % 1):
        env = Counter()
        env.reset(seed=0)
        *_, info = env.step(response)
        actions.add(info["parsed_action"])
    assert actions == {'[["add", {"number": 1}]]'}
    assert env.step(ADD % 2)[4]["parsed_action"] not in actions
    assert env.step(ADD % '"x"')[4]["parsed_action"] == ""


def test_a_wrong_call_is_answered_and_changes_nothing():
    env = Counter()
    env.reset(seed=0)
    for response, answers in {
        ADD % 1 + ADD % '"x"': ["not run, because another call", "'number' is wrong"],
        ADD.replace("add", "take") % 1: ["there is no tool 'take', only add, finish"],
        "<tool_call>\n{": ["the call is not JSON"],
        "I think 2.": ["call a tool: add, finish"],
    }.items():
        before = env.get_state()
        messages, reward, *_, info = env.step(response)
        assert (reward, info["action_is_valid"], info["action_is_effective"]) == (-0.1, False, False)
        assert env.get_state() == before._replace(turns=before.turns + 1)
        for message, answer in zip(messages, answers, strict=True):
            assert message.content.startswith("Error: ")
            assert answer in message.content


def test_several_calls_are_played_in_their_order_up_to_the_end():
    env = Counter()
    env.reset(seed=0)
    finish = '<tool_call>\n{"name": "finish"}\n</tool_call>'
    messages, reward, terminated, truncated, info = env.step(f"{ADD % 1}\n{ADD % 1}\n{finish}\n{ADD % 1}")
    assert [message.content for message in messages] == ["The count is 1.", "The count is 2.", "Finished."]
    assert {message.role for message in messages} == {"tool"}
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize("format", CALL_FORMATS)
def test_the_environment_is_told_the_format_of_calls(format: CallFormatName):
    env, own = Counter(), Counter(call_format="fenced")
    env.reset(seed=0, options={"call_format": format})
    assert json.loads(env.offer().message().content)["call_format"] == format
    messages, *_, info = env.step(env.oracle())
    assert info["action_is_valid"], messages
    own.reset(seed=0, options={"call_format": format})
    assert own.offer().call_format == "fenced"


@pytest.mark.parametrize("format", CALL_FORMATS)
def test_what_is_played_before_a_run_calls_as_the_policy_does(format: CallFormatName):
    env, oracle = Counter(), Expert().demonstrator
    assert len(calls_in(valid_response(env, format) or "", format)) == 1
    assert len(calls_in(first_demonstration(env, oracle.method, oracle.respond, call_format=format), format)) == 1
    [first] = sample_observations(env, turns=0, call_format=format)
    offer = next(message for message in first if message.role == "tools")
    assert json.loads(offer.content)["call_format"] == format


def test_another_format_is_refused():
    with pytest.raises(ConfigError, match=r"Counter\.call_format is 'yaml'"):
        Counter(call_format="yaml")


@pytest.mark.slow
def test_it_can_be_branched_and_played_in_a_process():
    check_branchable("tests.counter:Counter-v0", seeds=range(2))
    env = process_env("tests.counter:Counter-v0", {})
    env.reset(seed=1, options={"call_format": "xml"})
    assert isinstance(env, OffersTools)
    assert env.offer().call_format == "xml"
    assert [tool.name for tool in env.offer().tools] == ["add", "finish"]
    env.close()
