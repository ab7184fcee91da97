"""`tsr check-env` gives one verdict."""

import sys
from pathlib import Path

import pytest
from commands import in_folder
from gymnasium.envs.registration import registry

from tsr_lightning.cli.command import main

SPOILED = "tests.spoiled:Spoiled-v0"


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("tsr/FrozenLake-v0", "--env_kwargs", "{size: 3}", "--seeds", "2", "--noisy"), 0, "can be searched: "),
        (("tsr/FrozenLake-v0", "--seeds", "1", "--exact"), 1, "breaks the contract of search: reseed: two keys"),
        (
            (SPOILED, "--seeds", "1", "--env_kwargs", "{mistake: step raises}"),
            1,
            "KeyError: 'typo' at tests/",
        ),
        (("tsr/FrozenLak-v0",), 2, "did you mean tsr/FrozenLake-v0 or"),
        (("tsr/FrozenLake-v0", "--env_kwargs", "size=3"), 2, "size=3 is no YAML mapping"),
    ],
)
def test_verdict(args: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["check-env", *args])
    printed = capsys.readouterr()
    assert ended.value.code == status
    assert said in (printed.err if status == 2 else printed.out)
    assert len((printed.err + printed.out).splitlines()) == 1


UNMADE = """
import gymnasium
from tsr_lightning.envs.text_env import TextEnv


class Unreachable:
    def __init__(self):
        raise RuntimeError("no server here")


class Unfinished(TextEnv[int]):
    def __init__(self):
        super().__init__(max_turns=2, prompt_style="bare", format_penalty=0.0)


gymnasium.register("Unreachable-v0", Unreachable)
gymnasium.register("Unfinished-v0", Unfinished)
"""


@pytest.mark.parametrize(
    ("contents", "id", "status", "said"),
    [
        (
            UNMADE,
            "Unreachable-v0",
            1,
            "__init__ of my_unmade:Unreachable-v0 raised RuntimeError: no server here at my_un",
        ),
        (UNMADE, "Unfinished-v0", 1, "raised TypeError: Can't instantiate abstract class Unfinished"),
        ("import nothing_there", "Any-v0", 2, "my_unmade imports nothing_there, which is not there; install it, or"),
        (
            "def unfinished(:",
            "Any-v0",
            1,
            "importing my_unmade raised SyntaxError: invalid syntax (my_unmade.py, line 1)",
        ),
        ("{}['key']", "Any-v0", 1, "importing my_unmade raised KeyError: 'key' at my_unmade.py:1; fix the module"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_sentence(
    contents: str, id: str, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "my_unmade.py").write_text(contents)
    try:
        with in_folder(tmp_path), pytest.raises(SystemExit) as ended:
            main(["check-env", f"my_unmade:{id}"])
    finally:
        sys.modules.pop("my_unmade", None)
        for name in ("Unreachable-v0", "Unfinished-v0"):
            registry.pop(name, None)
    assert ended.value.code == status
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("tsr: error: ")
    assert said in last
