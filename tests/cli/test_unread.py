"""A command whose output nobody reads any more ends without a traceback."""

import os
import subprocess
import sys

import pytest

from tsr_lightning.cli.unread import UNREAD, quiet_if_unread

TSR = [sys.executable, "-m", "tsr_lightning"]
CHECK = [*TSR, "check-env", "tsr/FrozenLake-v0"]


def run_unread(*command: str) -> tuple[int, str]:
    """The exit status and the errors of a command whose reader has gone before it writes."""
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(write)
    return ended.returncode, ended.stderr


def test_a_command_that_nobody_reads_ends_with_the_status_of_sigpipe():
    assert run_unread(*CHECK) == (UNREAD, "")


def test_a_command_without_any_output_goes_on():
    ended = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *CHECK], stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_bad_input_keeps_its_sentence_where_nobody_reads():
    status, errors = run_unread(*TSR, "report", "nowhere")
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("tsr: error: ")


def test_another_broken_pipe_passes():
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), quiet_if_unread():
        os.write(write, b"x")
    os.close(write)


def test_tsr_ray_ends_likewise():
    code = "from tsr_lightning.cli.ray import command\ncommand.run = print\ncommand.main([])"
    assert run_unread(sys.executable, "-c", code) == (UNREAD, "")
