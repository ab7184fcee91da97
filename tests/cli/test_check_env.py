"""`tsr check-env` gives one verdict."""

import pytest

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
