"""The embedded policies have the success rates of their model cards."""

from pathlib import Path

import pytest
from commands import in_folder, tsr

GREEDY = '[{"name": "greedy", "temperature": 0.0, "samples": 1, "search": null}]'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "least", "most"),  # greedy success on all held-out instances ± three standard errors of 64 episodes
    [("sokoban", 0.20, 0.57), ("frozen_lake", 0.10, 0.45), ("webshop", 0.14, 0.49), ("alfworld", 0.16, 0.52)],
)
def test_greedy_success_rate_is_that_of_the_card(task: str, least: float, most: float, tmp_path: Path) -> None:
    with in_folder(tmp_path):
        trainer = tsr(
            *("validate", "--config", f"{task}.yaml", "--trainer.accelerator", "cpu"),
            *("--data.held_out.instances", "64", f"--data.evaluations={GREEDY}"),
            *("--trainer.enable_progress_bar", "false"),
        ).trainer
    assert least < trainer.callback_metrics["val/greedy/success_rate"] < most
