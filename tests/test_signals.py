"""Signals: the exit status and the sentence of a program that one ends, and what may not be cut."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import ROOT

from tsr_lightning.signals import Terminated, exit_status, one_sentence_signals, uninterrupted

WAITS = """
import signal, sys, time
sys.path.insert(0, {root!r})
from tsr_lightning.signals import one_sentence_signals
with one_sentence_signals("tsr"):
    print("ready", flush=True)
    {waits}
"""
SLEEP = "time.sleep(60)"


@pytest.mark.parametrize("waits", [SLEEP, f"exec({SLEEP!r})"])  # as imports do, for classes that are made of text
@pytest.mark.parametrize(
    ("number", "status", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_signal_ends_a_program_with_a_sentence_and_its_status(
    number: signal.Signals, status: int, name: str, waits: str, tmp_path: Path
):
    (tmp_path / "waits.py").write_text(WAITS.format(root=str(ROOT), waits=waits))
    program = subprocess.Popen(
        [sys.executable, "-m", "waits"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(number)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == status
    assert errors == f"tsr: stopped by {name}: the same command begins again\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_what_may_not_be_cut(number: signal.Signals):
    done = []
    with pytest.raises(SystemExit) as ended, one_sentence_signals("tsr"), uninterrupted():  # noqa: PT012
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        done.append("written")
    assert done == ["written"]
    assert ended.value.code == 128 + number
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_lightning_makes_of_ctrl_c_is_known():
    def exits() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    with pytest.raises(SystemExit) as ended:
        exits()
    assert exit_status(ended.value) == 130
    assert exit_status(Terminated()) == 143
    assert exit_status(SystemExit(1)) is None
    assert exit_status(ValueError()) is None


def test_a_text_file_that_is_cut_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tsr_lightning.files import write_whole

    def cut(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "evaluation.json", "{}")
    assert list(tmp_path.iterdir()) == []
