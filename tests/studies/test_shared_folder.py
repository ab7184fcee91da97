"""Runs of a study that share a start or a folder, with a program that trains nothing in the place of `tsr fit`."""

import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import stand_in
from commands import IMPORT_PATH
from rich.console import Console

from tsr_lightning.studies.folder import StudyFolder, read_json, write_json
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.result import result_contents
from tsr_lightning.studies.starts import measures_its_start

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = stand_in.stand_in(tmp_path)
    monkeypatch.setattr(sys, "executable", program)
    return program


def measuring(root: Path) -> set[str]:
    """The finished runs that measured their start."""
    results = StudyFolder(root).results.rglob("*.json")
    return {f"{path.parent.name}/{path.stem}" for path in results if measures_its_start(read_json(path))}


def test_the_next_run_measures_the_start_where_the_first_fails(tmp_path: Path):
    broken = tmp_path / "broken"
    broken.touch()
    arms = {"fails": {"fails_while": str(broken)}, "second": {}, "third": {}}
    outcome = stand_in.run(tmp_path / "study", arms)
    assert (outcome.failed, len(outcome.finished)) == ((Run("fails", 1),), 2)
    assert measuring(tmp_path / "study") == {"second/seed1"}
    broken.unlink()
    assert len(stand_in.run(tmp_path / "study", arms).finished) == 3
    assert measuring(tmp_path / "study") == {"second/seed1"}


def test_a_run_that_ended_early_is_not_finished_whatever_its_status_was(tmp_path: Path):
    stops = tmp_path / "stops"
    stops.touch()
    arms, run, folder = {"stops": {"stops_while": str(stops)}}, Run("stops", 1), StudyFolder(tmp_path / "study")
    printed = io.StringIO()
    outcome = stand_in.run(folder.root, arms, console=Console(file=printed, width=200))
    assert outcome.failed == (run,)
    assert not folder.result(run).exists()
    assert "FAILED: it was evaluated after 1 epochs at last, of 2, so the same command goes on" in printed.getvalue()
    # nor is one that an earlier version took for finished
    history = read_json(folder.work(run) / "evaluation.history.json")
    contents = result_contents(run, stand_in.SETTINGS, history, jobs=1, threads=1)
    write_json(folder.result(run), contents)
    stops.unlink()
    printed = io.StringIO()
    assert stand_in.run(folder.root, arms, console=Console(file=printed, width=200)).finished == (run,)
    assert "1 runs, 0 finished, 1 to do" in printed.getvalue()
    assert [one["costs"]["epochs"] for one in read_json(folder.result(run))["evaluations"]] == [0, 2]
    write_json(folder.result(run), {**contents, "end": {"epochs": 1, "stopped_by": "a callback"}})
    printed = io.StringIO()
    assert stand_in.run(folder.root, arms, console=Console(file=printed, width=200)).finished == (run,)
    assert "1 runs, 1 finished, 0 to do" in printed.getvalue()


def test_a_failure_is_reported_with_the_end_of_its_output_and_the_others_go_on(tmp_path: Path):
    (tmp_path / "broken").touch()
    arms = {"fails": {"fails_while": str(tmp_path / "broken")}, "other": {}}
    printed = io.StringIO()
    outcome = stand_in.run(tmp_path / "study", arms, console=Console(file=printed, width=200))
    assert (outcome.failed, outcome.finished) == ((Run("fails", 1),), (Run("other", 1),))
    log = StudyFolder(tmp_path / "study").log(Run("fails", 1))
    assert f"fails seed 1 FAILED with exit status 1; the end of {log}:; 1 left" in printed.getvalue()
    assert "\n    RuntimeError: this arm is broken on purpose\n" in printed.getvalue()
    assert "other seed 1 finished after 1.0 s" in printed.getvalue()


def test_of_runs_side_by_side_one_measures_the_start(tmp_path: Path):
    assert len(stand_in.run(tmp_path / "study", {"a": {}, "b": {}, "c": {}}, jobs=3, seeds=2).finished) == 6
    assert len(measuring(tmp_path / "study")) == 1


def test_a_start_of_a_run_that_was_not_chosen_is_taken(tmp_path: Path):
    arms: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
    stand_in.run(tmp_path / "study", arms, only=["b"])
    assert stand_in.run(tmp_path / "study", arms, only=["a", "c"]).finished == (Run("a", 1), Run("c", 1))
    assert measuring(tmp_path / "study") == {"b/seed1"}


def test_a_study_that_is_killed_holds_its_run_until_that_ends_and_goes_on(tmp_path: Path, program: str):
    """SIGKILL, which leaves it no time: its run is an orphan, which must not be run twice."""
    go = tmp_path / "go"
    arms = {"waits": {"waits_for": str(go)}}
    killed = subprocess.Popen(
        [PYTHON, stand_in.__file__, program, tmp_path / "study", go],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
    )
    wait_for(tmp_path / "go.begun")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert stand_in.run(tmp_path / "study", arms).busy == (Run("waits", 1),)
    go.touch()
    until = time.monotonic() + 20
    while (outcome := stand_in.run(tmp_path / "study", arms)).busy:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert outcome.finished == (Run("waits", 1),)


def test_what_another_study_finishes_meanwhile_is_counted(tmp_path: Path):
    go, printed = tmp_path / "go", io.StringIO()
    arms: dict[str, dict[str, str]] = {"first": {"waits_for": str(go)}, "second": {}, "third": {}}
    stand_in.run(tmp_path / "study", arms, only=["third"])  # which measures the start
    console = Console(file=printed, width=200)
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(stand_in.run, tmp_path / "study", arms, console=console)
        wait_for(tmp_path / "go.begun")
        assert stand_in.run(tmp_path / "study", arms, only=["second"]).finished == (Run("second", 1),)
        go.touch()
        assert slow.result().finished == (Run("first", 1), Run("second", 1), Run("third", 1))
    assert "[2/2] second seed 1 was finished by another study of this folder; none left" in printed.getvalue()


def wait_for(path: Path) -> None:
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
