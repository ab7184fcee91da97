"""Each objective, sampled and searched, learns a task of seconds from random weights: from 0.25 to over 0.9."""

from pathlib import Path

import parity
import pytest
from commands import TINY, in_folder, tsr


@pytest.mark.parametrize(
    ("objective", "search"),
    [
        pytest.param("ppo", "beam", marks=pytest.mark.slow),
        # plain samples and searches of these train in tests/objectives/test_objectives_learn.py too
        *(
            pytest.param(*names, marks=pytest.mark.exhaustive)
            for names in (
                ("gigpo", "beam"),
                ("grpo", "beam"),
                ("grpo", "sample"),
                ("ppo", "sample"),
                ("raft", "sample"),
            )
        ),
    ],
)
def test_success_rises_above_0_9(objective: str, search: str, tmp_path: Path) -> None:
    overlays = ("--config", f"search/{search}.yaml", "--config", f"objective/{objective}.yaml")
    overlays += ("--config", "credit/imitate.yaml") * (search == "beam")
    flags = [f"--{key}={value}" for key, value in parity.RUN.items()]
    with in_folder(tmp_path):
        trainer = tsr("fit", "--config", "sokoban.yaml", *overlays, *flags, f"--model.policy.model={TINY}").trainer
    assert trainer.callback_metrics["val/sampled/success_rate"] > 0.9
