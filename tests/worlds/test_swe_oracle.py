"""The oracle of software tasks, its guesses, and its edits as commands of sed."""

import subprocess
from pathlib import Path

import pytest

from tsr_lightning.rng import Key
from tsr_lightning.worlds.swe.env import SWEEnv
from tsr_lightning.worlds.swe.oracle import guesses
from tsr_lightning.worlds.swe.sed import changes, sed

BEFORE = "def f(a, b):\n    if a[0] < b and b < a:\n        return 'a' + b * 2\n    return None\n"


def edited(old: str, new: str) -> str:
    return BEFORE.replace(old, new)


@pytest.mark.parametrize(
    ("wanted", "script"),
    [
        (edited("a[0] <", "a[0] >="), "2s|<|>=|"),
        (edited("b < a", "b >= a"), "2s|<|>=|2"),
        (edited(" * ", " / "), r"3s|\*|/|"),
        (edited("and", "or"), "2s|and|or|"),
        (edited("[0]", "[1]"), "2s|0|1|"),
        (edited("'a' + b", "b + 'a'"), None),
        (edited("b * 2", "b | 2"), None),  # the bar is between the parts of a substitution
        (edited("return None", "return None or b"), None),
        (edited("    return None", "    return 'it\\n'\n    # & more"), None),
        (edited("    return None\n", ""), "4d"),
        ("import os\n" + BEFORE, "1i\\\nimport os"),
        (edited("a[0] <", "a[0] >=").replace("None", "0"), None),
    ],
)
def test_sed_makes_one_text_of_another(wanted: str, script: str | None, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(BEFORE)
    found = changes(BEFORE, wanted)
    subprocess.run(["bash", "-c", sed(found, "f.py")], cwd=tmp_path, check=True)
    assert (tmp_path / "f.py").read_text() == wanted
    assert script is None or [change.script for change in found] == [script]


@pytest.fixture
def env(sandbox_here: None) -> SWEEnv:
    made = SWEEnv(difficulty="easiest", packages=["calc"], call_format="fenced", max_turns=12)
    made.reset(seed=0)
    return made


def test_every_guess_is_one_operator_and_one_of_them_is_right(env: SWEEnv) -> None:
    tried = guesses(env.task, env.state.folder)
    assert len(set(tried)) == len(tried) > 1
    [(path, solution)] = env.task.solution.items()
    right = sed(changes(env.task.folder.files[path].decode(), solution.decode()), path)
    assert [right in command for command in tried].count(True) == 1


def test_a_guess_takes_the_one_before_back(env: SWEEnv) -> None:
    [path] = env.task.solution
    first, second = guesses(env.task, env.state.folder)[:2]
    env.bash(second)
    at_once = env.state.folder.files[path]
    env.reset(seed=0)
    env.bash(first)
    env.bash(guesses(env.task, env.state.folder)[0])
    assert env.state.folder.files[path] == at_once


def test_it_looks_and_repairs_once_it_has_seen_the_lines(env: SWEEnv) -> None:
    said = []
    while not env.ended():
        said.append(env.oracle())
        [answer], *_ = env.step(said[-1])
    assert [command.split()[:2] for command in said] == [["```bash", "grep"], ["```bash", "sed"], ["```submit", "```"]]
    assert answer.content == "Submitted."
    assert env.success()


def test_it_comes_back_from_guesses(env: SWEEnv) -> None:
    env.step(env.oracle())
    for number in range(3):
        env.step(env.oracle(1.0, Key(number)))
    while not env.ended():
        env.step(env.oracle())
    assert env.success()


def test_seeds_of_one_fault_are_one_task(sandbox_here: None) -> None:
    """So that none is held out and trained on."""
    env = SWEEnv(difficulty="easiest", packages=["caches"])
    keys, digests = [], []
    for seed in (1, 2, 3):
        env.reset(seed=seed)
        keys.append(env.state_key())
        digests.append(env.state.folder.digest)
    assert digests[1] == digests[2]
    assert keys[0] != keys[1] == keys[2]
