"""The embedded policies have the success rates of their model cards."""

from pathlib import Path

import pytest
from commands import in_folder, tsr

GREEDY = '[{"name": "greedy", "temperature": 0.0, "samples": 1, "search": null}]'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "policy", "instances", "least", "most"),  # greedy success on held-out instances ± three standard errors
    [
        ("sokoban", "sokoban", 64, 0.20, 0.57),
        ("frozen_lake", "frozen_lake", 64, 0.10, 0.45),
        pytest.param("webshop", "webshop", 64, 0.14, 0.49, marks=pytest.mark.exhaustive),
        pytest.param("alfworld", "alfworld", 64, 0.16, 0.52, marks=pytest.mark.exhaustive),
        pytest.param("textworld", "textworld", 24, 0.33, 0.93, marks=pytest.mark.exhaustive),
        pytest.param("textworld", "textworld_small", 24, 0.17, 0.80, marks=pytest.mark.exhaustive),
        pytest.param("swe", "swe", 24, 0.0, 0.49, marks=pytest.mark.exhaustive),
    ],
)
def test_greedy_success_rate_is_that_of_the_card(
    task: str, policy: str, instances: int, least: float, most: float, tmp_path: Path
) -> None:
    with in_folder(tmp_path):
        trainer = tsr(
            *("validate", "--config", f"{task}.yaml", "--trainer.accelerator", "cpu"),
            *("--data.held_out.instances", str(instances), f"--data.evaluations={GREEDY}"),
            *("--model.policy.model", f"embedded/{policy}", "--trainer.enable_progress_bar", "false"),
        ).trainer
    assert least < trainer.callback_metrics["val/greedy/success_rate"] < most
