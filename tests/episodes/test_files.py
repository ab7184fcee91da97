"""Files of episodes: what is damaged, altered or of another version is named in one sentence, and the rest is read."""

import gzip
import json
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.saved_episodes import header, written
from tsr_lightning.episodes.convert import to_trajectory
from tsr_lightning.episodes.files import _line, read, read_header, read_lines, write
from tsr_lightning.episodes.folder import file_of, files_at, keep_within, saved_in
from tsr_lightning.episodes.schema import Episode, Header, Node
from tsr_lightning.errors import ConfigError
from tsr_lightning.search.strategies import Beam

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "episodes.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written(tmp_path / "e.jsonl.gz", Beam(2, 4))
    return tmp_path / "e.jsonl.gz"


def rewritten(path: Path, line: int, old: bytes, new: bytes) -> None:
    """Changes one place of a line, as an editor would."""
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    path.write_bytes(gzip.compress(b"".join(lines)))


def test_an_altered_line_is_named_and_the_others_are_read(path: Path) -> None:
    rewritten(path, 4, b'"reward":', b'"reward":1')
    problems = [line.problem for line in read_lines(path)]
    assert [line for line, problem in enumerate(problems, start=2) if problem] == [4]
    with pytest.raises(ConfigError, match=r"e\.jsonl\.gz: line 4 was altered after it was written"):
        read(path)


def test_an_altered_header_is_named(path: Path) -> None:
    rewritten(path, 1, b'"temperature":1', b'"temperature":2')
    with pytest.raises(ConfigError, match=r"e\.jsonl\.gz: line 1 was altered after it was written .*: take a copy of"):
        read_header(path)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"envs": []}, r"header\.envs is \[\]"),
        ({"envs": [{"env": "tsr/Sokoban-v0"}]}, r"header\.envs\[0\] lacks env_kwargs"),
        ({"policy": {}}, r"header\.policy lacks response_prefix"),
        ({"policy": {**header().policy, "model": None}}, r"header\.policy\.model is None"),
        ({"context": {"class_path": "some.Context"}}, r"header\.context lacks init_args"),
        ({"limits": {**header().limits, "episode": "all"}}, r"header\.limits\.episode is 'all'"),
    ],
)
def test_a_header_that_lacks_what_is_read_of_it_is_named(
    changed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    write(tmp_path / "e.jsonl.gz", replace(header(), **changed), [])
    with pytest.raises(ConfigError, match=rf"line 1 is not as the schema says: {sentence}"):
        read_header(tmp_path / "e.jsonl.gz")


def test_an_episode_without_a_kept_response_is_named(path: Path) -> None:
    own, episodes = read(path)
    write(path, own, [replace(episodes[0], nodes=[]), *episodes[1:]])
    with pytest.raises(ConfigError, match="line 2 is not as the schema says: none of 0 nodes has the fate 'kept'"):
        read(path)


def test_every_altered_byte_of_the_file_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(10, len(whole), 97):  # behind gzip's own header, whose time and system mean nothing
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ConfigError, match=r"e\.jsonl\.gz"):
            read(path)


def test_a_truncated_file_is_read_as_far_as_it_goes(path: Path) -> None:
    whole = path.read_bytes()
    count = len(list(read_lines(path)))
    path.write_bytes(whole[: 2 * len(whole) // 3])
    lines = list(read_lines(path))
    assert 0 < sum(line.episode is not None for line in lines) < count
    assert "is cut off after line" in lines[-1].problem


def test_a_file_of_version_1_is_read_and_its_actions_are_its_texts(path: Path) -> None:
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    earlier = [line.replace(b'"version":2', b'"version":1').replace(b',"action":null', b"") for line in lines]
    assert earlier != lines
    path.write_bytes(gzip.compress(b"".join(earlier)))
    for line in range(1, len(lines) + 1):
        signed(path, line)
    header, episodes = read(path)
    assert header.version == 1
    turns = [turn for episode in episodes for turn in to_trajectory(episode).turns]
    assert turns
    assert all(turn.action == turn.text for turn in turns)


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (b"no gzip", "is no file of episodes"),
        (gzip.compress(b""), "is no file of episodes"),
        (gzip.compress(b"{}\n"), "is no file of episodes"),
        (gzip.compress(b'{"digest":"0123456789abcdef","schema":"tsr-episodes","version":3}\n'), "has version 3 of the"),
        (gzip.compress(b'{"digest":"0123456789abcdef","schema":"tsr-episodes","version":2}\n'), "line 1 was altered"),
        (gzip.compress(_line({"schema": "tsr-episodes", "version": 2})), "line 1 is not as the schema says: "),
    ],
    ids=["not gzip", "empty", "without a header", "another version", "altered", "another header"],
)
def test_another_file_is_refused_in_one_sentence(contents: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "e.jsonl.gz").write_bytes(contents)
    with pytest.raises(ConfigError, match=sentence):
        read_header(tmp_path / "e.jsonl.gz")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b'"fate":"kept"', b'"fate":"lucky"', r"nodes\[\d+\]\.fate is 'lucky'"),
        (b'"round":0', b'"round":0.5', r"episode\.nodes\[0\]\.round is 0\.5"),
        (b'"logprobs":[', b'"logprobs":["x",', r"episode\.nodes\[0\]\.logprobs is "),
        (b'"member":', b'"place":', r"has other fields: member, place"),
        (b'"parent":0', b'"parent":999', r"nodes\[\d+\] has the id \d+ and the parent 999"),
    ],
)
def test_a_line_that_is_not_as_the_schema_says_is_named(old: bytes, new: bytes, sentence: str, path: Path) -> None:
    body = json.loads(gzip.decompress(path.read_bytes()).splitlines()[1])
    rewritten(path, 2, old, new)
    signed(path, 2)
    assert body["nodes"]
    with pytest.raises(ConfigError, match=rf"line 2 is not as the schema says: .*{sentence}"):
        read(path)


def signed(path: Path, line: int) -> None:
    """Gives a line the digest of what it now holds."""
    from tsr_lightning.episodes.files import _digest

    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    own = lines[line - 1]
    lines[line - 1] = own[:11] + _digest(own.rstrip(b"\n")[29:]) + own[27:]
    path.write_bytes(gzip.compress(b"".join(lines)))


def test_a_run_without_saved_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no saved episodes: callbacks\.EpisodeLog keeps those of a run"):
        files_at(tmp_path)
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        files_at(tmp_path / "gone")


def test_a_budget_keeps_evaluations_the_ends_and_what_lies_evenly_between(tmp_path: Path) -> None:
    for phase in ("rollout", "sampled"):
        for epoch in range(9):
            write(file_of(tmp_path, phase, epoch), header(phase=phase, epoch=epoch), [])
    folder = tmp_path / "episodes"
    size = max(saved.path.stat().st_size for saved in saved_in(folder))
    newest = file_of(tmp_path, "rollout", 8)
    removed = keep_within(folder, 14 * size, newest)
    kept = [(saved.phase, saved.epoch) for saved in saved_in(folder)]
    assert [epoch for phase, epoch in kept if phase == "sampled"] == list(range(9))
    rollouts = [epoch for phase, epoch in kept if phase == "rollout"]
    assert (rollouts[0], rollouts[-1]) == (0, 8)
    assert len(rollouts) in (5, 6)
    assert max(after - before for before, after in pairwise(rollouts)) <= 2
    assert {saved.epoch for saved in removed} == set(range(9)) - set(rollouts)
    keep_within(folder, 1, newest)
    assert [(saved.phase, saved.epoch) for saved in saved_in(folder)] == [("rollout", 8)]


@pytest.mark.parametrize("kind", [Header, Episode, Node])
def test_the_page_has_every_field_of_the_schema(kind: type) -> None:
    named = PAGE.read_text(encoding="utf-8")
    assert [each.name for each in fields(kind) if f"`{each.name}`" not in named] == []
