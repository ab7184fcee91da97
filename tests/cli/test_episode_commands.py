"""`tsr rollout`, `replay`, `view` and `episodes` on the same few episodes."""

import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import in_folder, tsr, tsr_process

from tsr_lightning.cli.command import main
from tsr_lightning.episodes.files import read, read_header, write
from tsr_lightning.episodes.schema import plain

BEAM = ("--config", "search/beam.yaml")
OTHERS = [pytest.param(task, marks=pytest.mark.exhaustive) for task in ("webshop", "alfworld", "textworld")]


def rollout(task: str, output: Path, count: int, *flags: str) -> None:
    tsr(
        "rollout",
        "--config",
        f"{task}.yaml",
        *flags,
        "--episodes",
        count,
        "--output",
        output,
        "--trainer.accelerator=cpu",
    )


@pytest.fixture(scope="module")
def beam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beam")
    with in_folder(folder):
        rollout("sokoban", folder / "beam.jsonl.gz", 5, *BEAM, "--data.held_out.instances", "3")
    return folder / "beam.jsonl.gz"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def of(*args: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return of


Run = Callable[..., tuple[int, str]]


def altered(path: Path, to: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """A file with another content, whole and with digests of its own."""
    from tsr_lightning.episodes.files import _line

    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for record in records:
        del record["digest"]
    change(records)
    to.write_bytes(gzip.compress(b"".join(map(_line, records))))
    return to


@pytest.mark.slow
def test_a_rollout_plays_so_many_episodes_of_the_held_out_instances(beam: Path, run: Run, tmp_path: Path) -> None:
    _, episodes = read(beam)
    assert [(episodes[i].instance, episodes[i].member) for i in range(5)] == [
        (instance, member)
        for instance, members in zip(dict.fromkeys(one.instance for one in episodes), (2, 2, 1), strict=True)
        for member in range(members)
    ]
    assert {one.strategy for one in episodes} == {"Beam"}
    assert all({"kept"} < {node.fate for node in one.nodes} for one in episodes)
    status, said = run("replay", beam)
    assert (status, said.count("\n")) == (0, 1)
    assert re.match(r"5 episodes with \d+ responses came out as they were saved", said)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["frozen_lake", *OTHERS])
def test_a_tasks_beams_come_out_again(task: str, run: Run, tmp_path: Path) -> None:
    with in_folder(tmp_path):
        rollout(task, Path("e.jsonl.gz"), 3, *BEAM, "--data.held_out.instances", "3")
        assert run("replay", "e.jsonl.gz")[0] == 0


def of_node(name: str, value: Any, place: int = 1) -> Callable[[list[dict[str, Any]]], None]:
    def change(records: list[dict[str, Any]]) -> None:
        records[2]["nodes"][place][name] = value

    return change


def last_character(records: list[dict[str, Any]]) -> None:
    said = records[2]["nodes"][0]["observation"][0]
    said["content"] = said["content"][:-1] + "?"


def first_id(records: list[dict[str, Any]]) -> None:
    records[2]["nodes"][0]["prompt"][0] += 1


def one_response_id(records: list[dict[str, Any]]) -> None:
    records[2]["nodes"][1]["response"][1] += 1


def other_instance(records: list[dict[str, Any]]) -> None:
    records[2]["instance"] += 1


def larger_boards(records: list[dict[str, Any]]) -> None:
    records[0]["envs"][0]["env_kwargs"]["size"] = [7, 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (of_node("reward", 0.125), r"line 3, instance \d+, member 1: turn 1\S* .*reward: saved 0\.125, and now -?\d"),
        (last_character, r"line 3, .*turn 1\S*.*observation: saved .*\?.*, and now "),
        (first_id, r"line 3, .*turn 1\S*.*prompt: saved .*, and now "),
        (one_response_id, r"line 3, .*turn 1\S*.*text: saved .*, and now "),
        (of_node("state", "another"), r"line 3, .*state: saved 'another', and now "),
        (other_instance, r"line 3, .*the first observation: saved .*, and now "),
        (larger_boards, r"line 2, .*the first observation: saved .*the environment, its arguments or the tokenizer"),
    ],
    ids=["reward", "observation", "prompt id", "response id", "state", "instance", "environment"],
)
def test_the_first_difference_is_named(change: Any, sentence: str, beam: Path, run: Run, tmp_path: Path) -> None:
    status, said = run("replay", altered(beam, tmp_path / "e.jsonl.gz", change))
    assert status == 1
    assert re.search(sentence, said)
    assert said.count("\n") == 1


@pytest.mark.slow
def test_what_no_replay_shows_is_told_by_the_digest(beam: Path, run: Run, tmp_path: Path) -> None:
    lines = gzip.decompress(beam.read_bytes()).splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"why":"', b'"why":"luck, ', 1)
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    status, said = run("replay", tmp_path / "e.jsonl.gz")
    assert (status, said) == (
        1,
        f"{tmp_path}/e.jsonl.gz: line 4 was altered after it was written (its digest differs)\n",
    )
    status, said = run("view", tmp_path / "e.jsonl.gz")
    assert status == 0
    assert "line 4 was altered" in said
    assert "episodes.html: 4 episodes" in said
    assert "line 4 was altered" in (tmp_path / "episodes.html").read_text()


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_one_sentence(beam: Path, run: Run, tmp_path: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["envs"][0]["env_kwargs"]["colour"] = "red"

    status, said = run("replay", altered(beam, tmp_path / "e.jsonl.gz", change))
    assert status == 2
    assert said.count("\n") == 1
    assert "colour" in said


@pytest.mark.slow
def test_conversations_are_those_that_demonstrations_read(beam: Path, run: Run, tmp_path: Path) -> None:
    status, said = run("episodes", beam, "--to", "messages", "--output", tmp_path)
    assert status == 0
    assert said.startswith(f"{tmp_path}/beam.messages.jsonl: 5 episodes")
    _, episodes = read(beam)
    for line, episode in zip((tmp_path / "beam.messages.jsonl").read_text().splitlines(), episodes, strict=True):
        record = json.loads(line)
        said_by_policy = [one["content"] for one in record["messages"] if one["role"] == "assistant"]
        assert said_by_policy == [node.text for node in episode.path]
        assert (record["success"], record["return"]) == (episode.succeeded, episode.episode_return)


@pytest.mark.parametrize("command", [("view",), ("replay",), ("episodes", "--to", "messages")], ids=lambda one: one[0])
def test_a_run_without_episodes_is_one_sentence(command: Sequence[str], run: Run, tmp_path: Path) -> None:
    status, said = run(command[0], tmp_path, *command[1:])
    assert status == 2
    assert re.fullmatch(r"tsr: error: .* has no saved episodes: callbacks\.EpisodeLog keeps .*\n", said)


def test_a_model_that_has_moved_is_one_sentence(run: Run, tmp_path: Path) -> None:
    from tests.saved_episodes import header

    moved = {**header().policy, "model": f"{tmp_path}/moved"}
    write(tmp_path / "e.jsonl.gz", replace(header(), policy=moved), [])
    status, said = run("replay", tmp_path / "e.jsonl.gz")
    remedy = "neither a folder here nor a model in the cache or on the Hugging Face hub, so give the folder of its "
    assert (status, said.count("\n")) == (2, 1)
    assert f"the model of the episodes is '{tmp_path}/moved': {remedy}tokenizer as --model FOLDER" in said
    status, said = run("replay", tmp_path / "e.jsonl.gz", "--model", "./nowhere")
    assert (status, said.count("\n")) == (2, 1)
    assert f"--model is './nowhere': {remedy}" in said
    assert run("replay", tmp_path / "e.jsonl.gz", "--model", "embedded/sokoban")[0] == 0
    write(tmp_path / "e.jsonl.gz", replace(header(), policy={**moved, "model": {"width": 3}}), [])
    status, said = run("replay", tmp_path / "e.jsonl.gz")
    assert (status, said.count("\n")) == (2, 1)
    assert "the episodes' model has the sizes {'width': 3}, of which none can be made: " in said


def test_damaged_lines_are_left_out_and_told_by_the_status(run: Run, tmp_path: Path) -> None:
    from tests.saved_episodes import episode, header, node

    whole = episode("go", [node(0, None, "Right")])
    write(tmp_path / "e.jsonl.gz", header(), [replace(whole, nodes=[]), whole])
    status, said = run("episodes", tmp_path / "e.jsonl.gz", "--to", "messages")
    assert status == 1
    assert "line 2 is not as the schema says" in said
    assert "e.messages.jsonl: 1 episodes" in said


def test_output_that_its_encoding_lacks_is_replaced(tmp_path: Path) -> None:
    from tests.saved_episodes import episode, header, node

    write(tmp_path / "e.jsonl.gz", header(), [episode("go", [node(0, None, "Right")])])
    output = ("--output", "épisodes.html")
    done = tsr_process("view", "e.jsonl.gz", *output, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("?pisodes.html: 1 episodes")


def test_without_inspect_it_says_how_to_get_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsr_lightning.cli.episodes.find_spec", lambda name: None)
    status, said = run("episodes", tmp_path, "--to", "inspect")
    assert (status, said.count("\n")) == (2, 1)
    assert "pip install 'tsr-lightning[inspect]'" in said


def test_the_header_is_a_line_of_plain_json(tmp_path: Path) -> None:
    from tests.saved_episodes import header

    write(tmp_path / "e.jsonl.gz", header(size=[6, 6]), [])
    assert plain(read_header(tmp_path / "e.jsonl.gz"))["envs"][0]["env_kwargs"] == {"size": [6, 6]}


def test_what_is_there_is_not_overwritten_and_no_path_ends_in_a_traceback(beam: Path, run: Run, tmp_path: Path) -> None:
    flags = ("rollout", "--config", "sokoban.yaml", "--episodes", 1, "--trainer.accelerator=cpu")
    kept = tmp_path / "games.jsonl.gz"
    kept.write_text("mine")
    for output in (kept, tmp_path):
        status, said = run(*flags, "--output", output)
        assert status == 2
        assert f"output is '{output}': it exists already; give another file, or remove it first" in said
    assert kept.read_text() == "mine"
    for output in (kept, tmp_path):
        status, said = run("view", beam, "--output", output)
        assert (status, said) == (2, f"tsr: error: {output} is there, and no page of episodes: give another --output\n")
    assert kept.read_text() == "mine"
    for _ in range(2):  # a page is made anew, as the run goes on
        assert run("view", beam, "--output", tmp_path / "page.html")[0] == 0
    for command in ("view", "episodes"):
        to = ("--to", "messages") if command == "episodes" else ()
        status, said = run(command, beam, *to, "--output", kept / "x")
        assert status == 2, said
        assert "cannot be written" in said or "No such file" in said
