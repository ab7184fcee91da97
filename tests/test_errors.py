"""How errors end the command: bad input with status 2, a broken run with status 1, each with one sentence."""

import pickle

import pytest

from tsr_lightning.cli.messages import one_sentence_errors, run_error
from tsr_lightning.errors import ConfigError, RunError, describe, named


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (ConfigError("a is 1: give 2"), 2, "tsr: error: a is 1: give 2\n"),
        (RunError("the loss of\nepoch 3 is nan"), 1, "tsr: error: the loss of epoch 3 is nan\n"),
        (RunError("page \x1b[2J\u202e", "text \x07\n"), 1, "text \\x07\ntsr: error: page \\x1b[2J\\u202e\n"),
        (RunError("it broke", "  File mine.py, line 3\n"), 1, "  File mine.py, line 3\ntsr: error: it broke\n"),
    ],
    ids=repr,
)
def test_an_error_ends_the_command_with_its_status(
    error: Exception, status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, one_sentence_errors("tsr"):
        raise error
    assert ended.value.code == status
    assert capsys.readouterr().err == printed


def test_a_broken_run_can_be_told_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(RunError("it broke", "mine.py")))
    assert (copy.sentence, copy.details, str(copy)) == ("it broke", "mine.py", "it broke")


def test_a_broken_run_is_found_behind_a_librarys_error() -> None:
    broken = RunError("it broke")
    with pytest.raises(ValueError, match="a worker failed") as raised:
        raise ValueError("a worker failed") from broken
    assert run_error(raised.value) is broken
    assert run_error(ValueError("a worker failed")) is None


def test_a_fault_of_the_program_passes() -> None:
    with pytest.raises(KeyError), one_sentence_errors("tsr"):
        raise KeyError("x")


def test_control_characters_of_an_error_do_not_reach_the_log() -> None:
    error = ValueError("a page:\n\x1b]0;title\x07 ünïcode → \udc80")
    assert named(error) == "ValueError: a page:\n\\x1b]0;title\\x07 ünïcode → \\udc80"
    assert describe(error) == named(error)
