"""The file that `tsr rollout` and `tsr play` write is looked at before a model is built, and one process writes it."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import tsr
from processes import child_after

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy
from tsr_lightning.training.output import held_output

FLAGS = ("--config", "sokoban.yaml", "--trainer.accelerator", "cpu")


@pytest.fixture
def folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, without a model."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(Policy, "__init__", refuse)
    return empty_folder


@pytest.mark.parametrize("subcommand", ["play", "rollout"])
def test_a_file_that_another_process_writes_is_refused(subcommand: str, folder: Path):
    with ExitStack() as held:
        with (
            child_after(lambda: held.enter_context(held_output(Path("games.jsonl.gz")))) as child,
            pytest.raises(
                ConfigError, match=rf"output is games\.jsonl\.gz, which process {child} of .* is writing: wait"
            ),
        ):
            tsr(subcommand, *FLAGS, "--output", "games.jsonl.gz")
        with held_output(Path("games.jsonl.gz")):  # since the child was killed
            pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--output", "e.jsonl.gz", "--episodes", "0"), "episodes is 0: give 1 or more"),
        (("--output", "mine.txt"), "output is 'mine.txt': it exists already; give another file"),
        (
            ("--output", "mine.txt/e.jsonl.gz"),
            r"output is mine\.txt/e\.jsonl\.gz, which cannot be written \(File exists\)",
        ),
        (("--output", "."), r"output is '\.': give the name of a file, such as games\.jsonl\.gz"),
    ],
)
def test_a_rollout_that_cannot_be_written_is_refused(flags: tuple[str, ...], sentence: str, folder: Path):
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=sentence):
        tsr("rollout", *FLAGS, *flags)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert (folder / "mine.txt").read_text() == "mine"
