"""Rollouts as conversations in a file: which are written, and that a resumed run does not write any twice."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from callback_support import Agent, Data, outcomes, trainer, trajectory, turn
from commands import QUICK, TINY, in_folder, tsr

from callbacks import ConversationLog
from callbacks.conversation_log import to_record
from tsr_lightning.errors import ConfigError
from tsr_lightning.trajectory import to_messages

ORACLE = (
    *("fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", TINY, "--config", "search/expert.yaml"),
    *(
        "--config",
        "objective/sft.yaml",
        "--data.instances",
        "4",
        "--data.plan.init_args.strategy.init_args.noise",
        "0.3",
    ),
)
CHECKPOINT = {"filename": "{epoch}", "every_n_epochs": 1, "save_top_k": -1, "save_on_train_epoch_end": True}


def callbacks(**arguments: object) -> tuple[str, str]:
    log = {"class_path": "callbacks.ConversationLog", "init_args": {"path": "log.jsonl", **arguments}}
    checkpoint = {"class_path": "ModelCheckpoint", "init_args": CHECKPOINT}
    return "--trainer.callbacks", json.dumps([log, checkpoint])


def records() -> list[dict[str, object]]:
    return [json.loads(line) for line in Path("log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, whose log has its failures too."""
    folder = tmp_path_factory.mktemp("logged")
    with in_folder(folder):
        tsr(*ORACLE, *callbacks(successes_only=False))
    return folder


@pytest.fixture
def logged(two_epochs: Path, empty_folder: Path) -> Path:
    """A copy of it, to work in."""
    shutil.copytree(two_epochs, empty_folder, dirs_exist_ok=True)
    return empty_folder


def test_a_record_has_the_messages_in_turn():
    first = replace(turn(text="east"), messages=to_messages("at 0", "walk"))
    second = replace(turn(text="west"), messages=to_messages("at 1"))
    record = to_record(trajectory(7, 0, first, second, succeeded=True))
    roles = ("system", "user", "assistant", "user", "assistant")
    contents = ("walk", "at 0", "east", "at 1", "west")
    pairs = zip(roles, contents, strict=True)
    assert record["messages"] == [{"role": role, "content": content} for role, content in pairs]
    assert (record["instance"], record["success"]) == (7, True)


def test_failures_are_written_where_asked_for(logged: Path):
    everything = records()
    assert len(everything) == 8
    tsr(*ORACLE, *callbacks())
    assert records() == [record for record in everything if record["success"]]
    assert 0 < len(records()) < 8


def test_a_run_from_the_start_replaces_the_file_whenever_its_first_rollout_is(logged: Path):
    Path("log.jsonl").rename("demonstrations.jsonl")
    Path("log.jsonl").write_text('{"epoch": 0}\n', encoding="utf-8")  # of an earlier run
    expert = {"class_path": "Uniform", "init_args": {"count": 1, "strategy": {"class_path": "Expert"}}}
    phases = {"class_path": "Phases", "init_args": {"epochs": [1], "plans": [{"class_path": "NoRollout"}, expert]}}
    demonstrations = {"path": "demonstrations.jsonl", "count": 4, "epochs": 1}
    flags = ("--data.plan", json.dumps(phases), "--data.demonstrations", json.dumps(demonstrations))
    tsr(*ORACLE, *callbacks(successes_only=False), *flags)
    assert {record["epoch"] for record in records()} == {1}


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_replaces_the_lines_of_its_epochs(logged: Path):
    before = Path("log.jsonl").read_text(encoding="utf-8")
    Path("log.jsonl").write_text(before + '{"epoch": 2, "cut o', encoding="utf-8")  # killed while it wrote
    [first] = Path("runs").rglob("*=0.ckpt")
    tsr(*ORACLE, *callbacks(successes_only=False), "--ckpt_path", first)
    assert Path("log.jsonl").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "foreign", [b'{"messages": []}\n', b'[{"messages": []}]', b"PAR1\x15\xff\xfe\n"], ids=["line", "no line", "no text"]
)
def test_a_run_from_the_start_overwrites_no_file_of_another_program(empty_folder: Path, foreign: bytes):
    Path("log.jsonl").write_bytes(foreign)
    with pytest.raises(ConfigError, match=r"ConversationLog\.path is 'log\.jsonl': a line there has no epoch"):
        tsr(*ORACLE, *callbacks())
    tsr("validate", *ORACLE[1:], *callbacks(), "--data.held_out.instances", "1")  # which writes no conversations
    assert Path("log.jsonl").read_bytes() == foreign


def test_a_folder_is_refused_before_the_first_rollout(empty_folder: Path):
    Path("log.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"ConversationLog\.path is 'log\.jsonl': it is no file, so give the path"):
        tsr(*ORACLE, *callbacks())


def test_a_kill_while_a_run_that_goes_on_takes_up_its_file_loses_no_line(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def killed(descriptor: int) -> None:
        raise RuntimeError("killed")

    run = trainer(empty_folder, ConversationLog("log.jsonl"), limit_val_batches=0)
    data = Data(rollout=lambda epoch: [outcomes(epoch, 1)])
    run.fit(Agent(), datamodule=data)
    before = records()
    assert [record["epoch"] for record in before] == [0]
    run.fit_loop.max_epochs = 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run.fit(Agent(), datamodule=data)
    assert records() == before


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_refuses_a_file_that_another_program_wrote(logged: Path):
    foreign = '{"messages": []}\n'
    Path("log.jsonl").write_text(foreign, encoding="utf-8")
    [first] = Path("runs").rglob("*=0.ckpt")
    with pytest.raises(ConfigError, match=r"ConversationLog\.path is 'log\.jsonl': a line there has no epoch"):
        tsr(*ORACLE, *callbacks(successes_only=False), "--ckpt_path", first)
    assert Path("log.jsonl").read_text(encoding="utf-8") == foreign
