"""Demonstrations from a file: how they are read, drawn and turned into trajectories."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.counter import Counter as CounterEnv
from tests.fakes import Letters
from tsr_lightning.episodes.conversations import to_record
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.trajectory import Ended, Group, Message, Origin, Trajectory, Turn

ROOM = 1000


def conversation(*contents: str, system: str | None = "walk") -> str:
    """User and assistant in turn."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return json.dumps({"messages": messages})


def written(folder: Path, *lines: str) -> str:
    path = folder / "demonstrations.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def numbered(folder: Path, count: int) -> str:
    return written(folder, *(conversation(f"go {number}", "a") for number in range(1, count + 1)))


def drawn(demonstrations: Demonstrations, epoch: int, seed: int = 1) -> list[int]:
    return [group.instance for group in demonstrations.groups(Key(seed), epoch, Letters(), ROOM)]


def test_a_conversation_is_a_group_of_one_demonstrated_trajectory(tmp_path: Path):
    path = written(tmp_path, "", conversation("3,6;", "b", "5,5;", "ab"))
    [group] = Demonstrations(path, count=1).groups(Key(1), 0, Letters(), ROOM)
    assert isinstance(group, Group)
    [trajectory] = group.trajectories
    assert (trajectory.origin, trajectory.instance, trajectory.succeeded) == (Origin.DEMONSTRATED, 2, True)
    first, second = trajectory.turns
    assert "".join(map(chr, first.prompt)) == "walk3,6;"
    assert "".join(map(chr, second.prompt)) == "walk3,6;b5,5;"
    assert [(turn.text, "".join(map(chr, turn.response))) for turn in (first, second)] == [("b", "b"), ("ab", "ab")]
    assert trajectory.trained_tokens == 3


def test_without_a_system_message_none_is_shown(tmp_path: Path):
    path = written(tmp_path, conversation("3,6;", "b", system=None))
    [group] = Demonstrations(path, count=1).groups(Key(1), 0, Letters(), ROOM)
    assert "".join(map(chr, group.trajectories[0].turns[0].prompt)) == "3,6;"


def test_none_is_repeated_until_all_were_used(tmp_path: Path):
    """Seven conversations, three an epoch: seven epochs are three passes."""
    demonstrations = Demonstrations(numbered(tmp_path, 7), count=3)
    in_order = [line for epoch in range(7) for line in drawn(demonstrations, epoch)]
    passes = [in_order[start : start + 7] for start in (0, 7, 14)]
    assert [sorted(each) for each in passes] == [[1, 2, 3, 4, 5, 6, 7]] * 3
    assert len({tuple(each) for each in passes}) == 3
    assert Counter(in_order) == dict.fromkeys(range(1, 8), 3)


def test_draws_depend_on_the_key_and_the_epoch_alone(tmp_path: Path):
    path = numbered(tmp_path, 7)
    begun = Demonstrations(path, count=3)
    _ = [drawn(begun, epoch) for epoch in range(4)]
    assert drawn(begun, 4) == drawn(Demonstrations(path, count=3), 4)
    assert drawn(begun, 0) != drawn(begun, 0, seed=2)


def test_they_end_with_their_epochs(tmp_path: Path):
    demonstrations = Demonstrations(numbered(tmp_path, 4), count=2, epochs=2)
    assert [len(drawn(demonstrations, epoch)) for epoch in range(4)] == [2, 2, 0, 0]


def test_other_line_separators_within_a_text_end_no_line(tmp_path: Path):
    line = json.dumps({"messages": [{"role": role, "content": "a\u2028b"} for role in ("user", "assistant")]})
    path = written(tmp_path, line.encode().decode("unicode_escape"))
    [read] = Demonstrations(path, count=1).conversations
    assert read.exchanges == (((Message("user", "a\u2028b"),), "a\u2028b"),)


def test_a_file_that_is_no_utf_8_is_refused(tmp_path: Path):
    (tmp_path / "talks.jsonl").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"talks\.jsonl': it is no UTF-8 text, so write it as UTF-8"):
        _ = Demonstrations(str(tmp_path / "talks.jsonl")).conversations


@pytest.mark.parametrize("tools", [[], [{"name": "half \ud83d"}]])
def test_half_of_a_surrogate_pair_is_refused(tools: list[object], tmp_path: Path):
    said = "go" if tools else "go \ud83d"
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "a"}]
    whole = json.dumps({"messages": [{**messages[0], "content": "go \U0001f600"}, messages[1]]})
    path = written(tmp_path, whole, json.dumps({"messages": messages, "tools": tools}))
    with pytest.raises(ConfigError, match=r"demonstrations\.jsonl': line 2 has half of a surrogate pair, which is no"):
        _ = Demonstrations(path, count=1).conversations


def test_the_file_is_read_once(tmp_path: Path):
    demonstrations = Demonstrations(numbered(tmp_path, 3), count=3)
    first = drawn(demonstrations, 0)
    Path(demonstrations.path).unlink()
    assert drawn(demonstrations, 0) == first


def test_a_turn_that_fills_the_context_is_accepted_and_a_longer_one_is_not(tmp_path: Path):
    demonstrations = Demonstrations(written(tmp_path, conversation("3,6;", "b", "5,5;", "ab")), count=1)
    demonstrations.check(Letters(), len("walk3,6;b5,5;ab"))
    with pytest.raises(
        ConfigError, match=r"line 1 is longer than the context: its turn 2 has 15 tokens, of at most 14"
    ):
        demonstrations.check(Letters(), 14)


@pytest.mark.parametrize("messages", ["3", "null", '["go"]', '[{"role": "user"}]', "{}"])
def test_messages_of_another_shape_are_refused(messages: str, tmp_path: Path):
    path = written(tmp_path, f'{{"messages": {messages}}}')
    with pytest.raises(ConfigError, match=r"demonstrations\.jsonl': line 1 has no"):
        _ = Demonstrations(path, count=1).conversations


@pytest.mark.parametrize(
    ("role", "content", "problem"),
    [
        ("3", "a", "has the role 3; give one of system, user, assistant, tool, tools"),
        ('"function"', "a", "has the role 'function'; give one of system"),
        ('"tools"', "look", 'has a message of tools, so write their schemas as "tools" beside "messages"'),
        ('"tools"', "[]", 'has a message of tools, so write their schemas as "tools" beside "messages"'),
    ],
)
def test_other_roles_and_tools_that_are_no_json_are_refused(role: str, content: str, problem: str, tmp_path: Path):
    said = f'{{"role": {role}, "content": "{content}"}}, {{"role": "user", "content": "a"}}'
    path = written(tmp_path, f'{{"messages": [{said}, {{"role": "assistant", "content": "b"}}]}}')
    with pytest.raises(ConfigError, match=rf"demonstrations\.jsonl': line 1 {problem}"):
        _ = Demonstrations(path, count=1).conversations


def test_tools_stand_beside_the_messages_as_in_trl(tmp_path: Path):
    env = CounterEnv()
    env.reset(seed=1, options={"call_format": "json"})
    offer = env.offer().message()
    schemas = json.loads(offer.content)["tools"]
    asked = (Message("system", "Count."), offer, Message("user", "go"))
    turn = Turn((), (), (), True, asked, "add", 0.0, True, True, "add")
    ended = Trajectory(1, 0, "Expert", Origin.DEMONSTRATED, (turn,), Ended.SUCCEEDED, (), ())
    record = to_record(ended)
    assert [message["role"] for message in record["messages"]] == ["system", "user", "assistant"]
    assert (record["tools"], record["call_format"]) == (schemas, "json")
    messages = [{"role": "tools", "content": offer.content}, *record["messages"]]
    earlier = json.dumps({"messages": [messages[1], messages[0], *messages[2:]]})
    path = written(tmp_path, json.dumps(record), earlier)
    for conversation in Demonstrations(path, count=1).conversations:
        assert conversation.exchanges == ((turn.messages, "add"),)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"tools": "look"}, "has tools that are no list of schemas"),
        ({"tools": ["look"]}, "has tools that are no list of schemas"),
        ({"tools": [{}], "call_format": "yaml"}, "has the call_format 'yaml'; give one of hermes, xml, json, fenced"),
    ],
)
def test_other_tools_are_refused(columns: dict[str, object], problem: str, tmp_path: Path):
    path = written(tmp_path, json.dumps({**json.loads(conversation("go", "a")), **columns}))
    with pytest.raises(ConfigError, match=rf"line 1 {problem}"):
        _ = Demonstrations(path, count=1).conversations


def test_a_content_of_parts_is_refused(tmp_path: Path):
    content = '[{"type": "text", "text": "go"}]'
    path = written(tmp_path, f'{{"messages": [{{"role": "user", "content": {content}}}]}}')
    with pytest.raises(ConfigError, match="line 1 has a content that is no text"):
        _ = Demonstrations(path, count=1).conversations


def test_a_count_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"Demonstrations\.count is 0: give 1 or more"):
        Demonstrations("demonstrations.jsonl", count=0)
