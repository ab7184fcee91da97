"""The README's examples: each file is written where a user would put it, and the command below it is run."""

import re
import shlex
from pathlib import Path

import pytest
from commands import QUICK, ROOT, in_folder, tsr

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```\n\n```\ntsr (.*?)\n```", README, re.DOTALL)


def test_the_readme_has_an_example_of_each_kind() -> None:
    assert [name for name, _, _ in EXAMPLES] == ["guess.py", "stubborn.py", "reinforce.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source", "command"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_an_example_trains(name: str, source: str, command: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(source, encoding="utf-8")
    subcommand, *flags = shlex.split(command)
    with in_folder(tmp_path):
        cli = tsr(subcommand, *flags, *QUICK[:-2], "--trainer.max_epochs", "1")
    assert cli.trainer.global_step > 0
    assert cli.trainer.callback_metrics["train/grad_norm_policy"] > 0


def test_every_file_that_the_readme_names_is_there() -> None:
    names = set(re.findall(r"(?:configs|docs)/[\w./-]+\.(?:yaml|md|png)", README))
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).is_file()] == []
