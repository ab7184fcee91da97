"""The data in the page of `tsr view`, read as its script does, and the problems that it lists of damaged files."""

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.saved_episodes import episode, header, node
from tsr_lightning.episodes.files import write
from tsr_lightning.episodes.page.write import Source, write_page


def shown(page: Path) -> list[dict[str, Any]]:
    """The episodes of a page."""
    blocks = re.findall(r'id="block-\d+"[^>]*>([^<]*)<', page.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in gzip.decompress(base64.b64decode(block)).decode().splitlines()]
    return [json.loads(line) for line in lines]


def columns(page: Path) -> dict[str, list[Any]]:
    """What the page filters and lists by."""
    [index] = re.findall(r'id="index"[^>]*>([^<]*)<', page.read_text(encoding="utf-8"))
    found: dict[str, list[Any]] = json.loads(gzip.decompress(base64.b64decode(index)))["columns"]
    return found


def test_one_seed_in_two_tasks_of_one_label_is_two_instances(tmp_path: Path) -> None:
    """As of one environment with other arguments, such as the size of its boards."""
    one = episode("go", [node(0, None, "Right")])
    for name, state in (("one", "small"), ("two", "small"), ("three", "large")):
        write(tmp_path / f"{name}.jsonl.gz", header(), [replace(one, state=state)])
    sources = [Source(tmp_path / f"{name}.jsonl.gz", name) for name in ("one", "two", "three")]
    write_page(sources, "three", tmp_path / "page.html")
    found = columns(tmp_path / "page.html")
    assert (len(set(found["instance"])), len(set(found["task"]))) == (1, 1)
    assert found["initial"] == [0, 0, 1]


def test_a_response_that_was_not_sampled_has_no_probability(tmp_path: Path) -> None:
    oracle = node(0, None, "Right", demonstrated=True, logprobs=[0.0])
    person = node(1, 0, "Left", demonstrated=True)
    certain = node(2, 1, "Down", logprobs=[0.0])
    write(tmp_path / "e.jsonl.gz", header(), [episode("go", [oracle, person, certain])])
    assert write_page([Source(tmp_path / "e.jsonl.gz", "")], "one", tmp_path / "e.html") == (1, [])
    [found] = shown(tmp_path / "e.html")
    assert [each["logprob"] for each in found["nodes"]] == [None, -0.5, 0.0]


def test_an_episode_of_no_environment_is_named_and_left_out(tmp_path: Path) -> None:
    whole = episode("go", [node(0, None, "Right")])
    path = tmp_path / "e.jsonl.gz"
    write(path, header(), [replace(whole, env=-1), whole, replace(whole, env=1)])
    count, problems = write_page([Source(path, "")], "some", tmp_path / "e.html")
    assert count == len(shown(tmp_path / "e.html")) == 1
    assert problems == [
        f"{path}: line {line} has the env {env}, and the header's envs end with 0" for line, env in ((2, -1), (4, 1))
    ]


def test_one_file_that_cannot_be_read_does_not_end_the_others(tmp_path: Path) -> None:
    whole = [episode("go", [node(0, None, "Right")])]
    write(tmp_path / "one.jsonl.gz", replace(header(), envs=[{"env": "tsr/Sokoban-v0"}]), whole)
    write(tmp_path / "two.jsonl.gz", header(), whole)
    sources = [Source(tmp_path / f"{name}.jsonl.gz", name) for name in ("one", "two")]
    count, problems = write_page(sources, "both", tmp_path / "page.html")
    assert count == 1
    assert problems == [f"{sources[0].path}: line 1 is not as the schema says: header.envs[0] lacks env_kwargs"]
