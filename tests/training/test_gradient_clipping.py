"""Policy and critic are clipped each by its own norm, so that a large error of the critic does not shrink the policy's
step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK, TINY, in_folder, tsr
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

NORM = 0.05


class Norms(Callback):
    """The gradient norm of each parameter group, before and after clipping."""

    before: dict[str, float]
    after: dict[str, float]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self.before = norms(optimizer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.after = norms(trainer.optimizers[0])


def norms(optimizer: Optimizer) -> dict[str, float]:
    return {
        group["name"]: float(torch.cat([p.grad.flatten() for p in group["params"] if p.grad is not None]).norm())
        for group in optimizer.param_groups
    }


@pytest.mark.parametrize(("algorithm", "by_norm"), [("norm", True), ("value", False)])
def test_each_parameter_group_is_clipped_by_its_own_norm(tmp_path: Path, algorithm: str, by_norm: bool) -> None:
    with in_folder(tmp_path):
        callbacks = '--trainer.callbacks=[{"class_path": "test_gradient_clipping.Norms"}]'
        flags = {
            "model.policy.model": TINY,
            "model.objective.init_args.format_penalty": 10.0,  # a policy gradient even where returns are equal
            "model.objective.init_args.critic.coefficient": 100,
            "trainer.gradient_clip_val": NORM,
            "trainer.gradient_clip_algorithm": algorithm,
            "trainer.max_epochs": 1,
        }
        overlay = ("--config", "objective/ppo.yaml", *(f"--{key}={value}" for key, value in flags.items()))
        trainer = tsr("fit", "--config", "sokoban.yaml", *QUICK, *overlay, callbacks).trainer
    [recorded] = [callback for callback in trainer.callbacks if isinstance(callback, Norms)]
    assert recorded.before["critic"] > 10 * NORM  # nine tenths of a common norm
    assert recorded.before["policy"] > NORM
    if by_norm:
        assert recorded.after == pytest.approx({"policy": NORM, "critic": NORM}, rel=1e-4)
    else:
        assert 0 < recorded.after["critic"] < recorded.before["critic"]
        assert 0 < recorded.after["policy"] <= recorded.before["policy"]
