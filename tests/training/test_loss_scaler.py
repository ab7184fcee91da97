"""Under float16 a scaler of losses finds its scale by gradients that overflow, and leaves out their steps."""

import math

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from optimizer_steps import QUIET, SIZES, parity_data

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.training.agent import Agent

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's, with a new torch
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),  # a step was left out
]


class Norms(Callback):
    """The policy's gradient norm at each optimizer step."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self.norms.append(float(trainer.callback_metrics["train/grad_norm_policy"]))


def test_an_overflow_ends_no_run() -> None:
    norms, scaler = Norms(), torch.amp.GradScaler("cpu", init_scale=2.0**40)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
    trainer = Trainer(max_epochs=2, limit_val_batches=0, plugins=plugins, callbacks=[norms], **QUIET)
    data = parity_data(Updates(min_trajectories=1, epochs=20, minibatches=2, mismatch_tolerance=None))
    trainer.fit(Agent(PolicySpec(SIZES), GRPO()), data)
    assert not math.isfinite(norms.norms[0])
    assert math.isfinite(norms.norms[-1])
    assert scaler.get_scale() < 2.0**40
