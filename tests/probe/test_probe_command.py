"""`tsr probe` on the command line: its verdict, its status, and what cannot be probed."""

import re

import pytest
from commands import TINY

from tsr_lightning.cli.command import main

TASK = ("--config", "sokoban.yaml", "--model.policy.model", TINY, "--trainer.accelerator", "cpu")


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ((), 2, r"tsr probe needs a configuration: give --config FILE"),
        (
            (*TASK, "--data.sampling.temperature", "0.001"),
            2,
            r"model\.policy\.model is .*: it answers the probe's tasks with one character in 100\.0% of its samples",
        ),
        (
            (*TASK, "--model.objective", "broken_runs.FlippedSign"),
            1,
            r"constant .*FAILED: .*less likely: change the sign\nthe probe found a fault, and went no further\n$",
        ),
    ],
    ids=["no configuration", "a sure model", "flipped sign"],
)
def test_verdict(flags: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["probe", *flags])
    printed = capsys.readouterr()
    assert ended.value.code == status
    assert re.search(said, printed.err if status == 2 else printed.out)
    assert status == 1 or printed.out == ""
