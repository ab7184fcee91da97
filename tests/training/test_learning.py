"""Each objective, sampled and searched, learns a task of seconds from random weights: from 0.25 to over 0.9."""

from pathlib import Path

import pytest
from commands import TINY, in_folder, tsr

EVALUATIONS = '[{"name": "sampled", "temperature": 1.0, "samples": 1, "search": null}]'


@pytest.mark.parametrize(
    ("objective", "search"),
    [
        *(pytest.param(*names, marks=pytest.mark.slow) for names in (("grpo", "beam"), ("ppo", "beam"))),
        # plain samples of these train in tests/objectives/test_objectives_learn.py too
        *(
            pytest.param(*names, marks=pytest.mark.exhaustive)
            for names in (("gigpo", "beam"), ("grpo", "sample"), ("ppo", "sample"), ("raft", "sample"))
        ),
    ],
)
def test_success_rises_above_0_9(objective: str, search: str, tmp_path: Path) -> None:
    overlays = ("--config", f"search/{search}.yaml", "--config", f"objective/{objective}.yaml")
    settings = {
        "model.policy.model": TINY,
        "model.optimizer.learning_rate": 0.005,
        "data.env": "parity:Parity-v0",
        "data.env_kwargs": "null",
        "data.instances": 16,
        "data.plan.init_args.count": 8,
        "data.sampling.max_response_tokens": 2,
        "data.held_out.instances": 128,
        "data.evaluations": EVALUATIONS,
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false",
        "trainer.max_epochs": 30,
        "trainer.check_val_every_n_epoch": 30,
    }
    flags = [f"--{key}={value}" for key, value in settings.items()]
    callbacks = '--trainer.callbacks=[{"class_path": "callbacks.Evaluation"}]'
    with in_folder(tmp_path):
        trainer = tsr("fit", "--config", "sokoban.yaml", *overlays, *flags, callbacks).trainer
    assert trainer.callback_metrics["val/sampled/success_rate"] > 0.9
