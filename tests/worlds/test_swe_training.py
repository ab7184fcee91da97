"""Software tasks train from their shipped configuration."""

from pathlib import Path

import pytest
from commands import QUICK, tsr

DEMONSTRATIONS = ("--config", "search/expert.yaml", "--config", "objective/sft.yaml")
BEAM = ("--config", "search/beam.yaml", "--config", "credit/tree.yaml")


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox_here")
@pytest.mark.parametrize("overlays", [DEMONSTRATIONS, pytest.param(BEAM, marks=pytest.mark.exhaustive)])
def test_trains(overlays: tuple[str, ...], empty_folder: Path) -> None:
    cli = tsr(
        *("fit", "--config", "swe.yaml", *overlays, *QUICK, "--trainer.max_epochs", "1"),
        *("--trainer.limit_val_batches", "0", "--data.updates.minibatches", "1"),
        *("--model.optimizer.warmup_updates", "0"),
    )
    metrics = cli.trainer.callback_metrics
    assert cli.trainer.global_step == 1
    assert metrics["train/policy_weight"] > 0
    assert metrics["train/grad_norm_policy"] > 1e-4
