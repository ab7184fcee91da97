"""The examples of the README and of docs/extend.md run: each file is written where a user would put it, and the command
below it is run."""

import re
import shlex
from pathlib import Path

import pytest
from commands import QUICK, ROOT, in_folder, tsr

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```\n\n```\ntsr (.*?)\n```", EXTEND, re.DOTALL)
# For fewer epochs than the example has, in both of its phases.
SHORTER = {"largest.py": ("--data.plan.init_args.epochs", "[1]", "--trainer.max_epochs", "2")}


def test_there_is_an_example_of_each_kind():
    assert [name for name, _, _ in EXAMPLES] == [
        "guess.py",
        "clerk.py",
        "safe.py",
        "largest.py",
        "stubborn.py",
        "valid_actions.py",
        "median.py",
        "equal_turns.py",
        "plain_engine.py",
        "skip_solved.py",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source", "command"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_an_example_trains(name: str, source: str, command: str, tmp_path: Path):
    (tmp_path / name).write_text(source, encoding="utf-8")
    subcommand, config, task, *flags = shlex.split(command)
    quick = (*QUICK[:-2], "--trainer.max_epochs", "1")  # before the example's own flags, which stand
    with in_folder(tmp_path):
        cli = tsr(subcommand, config, task, *quick, *flags, *SHORTER.get(name, ()))
    assert cli.trainer.global_step > 0
    assert cli.trainer.callback_metrics["train/grad_norm_policy"] > 0
    assert name.removesuffix(".py") in str(cli.config)


@pytest.mark.slow
def test_the_python_example_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    [source] = re.findall(r"```python\n(import tsr_lightning .*?)```", README, re.DOTALL)
    quick = source.replace("max_epochs=40", "max_epochs=1").replace("instances=64", "instances=4")
    quick = quick.replace("samples=4", "samples=1")
    assert quick.count("max_epochs=1,") == quick.count("instances=4") == quick.count("samples=1") == 1
    names: dict[str, object] = {}
    with in_folder(tmp_path):
        exec(compile(quick, "README.md", "exec"), names)
    assert names["trainer"].global_step > 0
    rates = re.findall(r"^(before|after ) sampled: success rate (\S+) \[", capsys.readouterr().out, re.MULTILINE)
    assert [when for when, _ in rates] == ["before", "after "]
    assert rates[0][1] != rates[1][1]


def test_every_file_that_the_readme_names_exists():
    names = set(re.findall(r"(?:configs|docs|examples|tsr_lightning)/[\w./-]+\.(?:yaml|md|png|py)", README))
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).is_file()] == []
