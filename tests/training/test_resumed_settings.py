"""A resumed run has the optimizer settings of its configuration, and the random state of its checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import QUICK, TINY, tsr
from torch import nn

from tsr_lightning.training.optimizer import Optimizer
from tsr_lightning.training.random_state import RandomState

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch
CALLBACKS = '[{"class_path": "ModelCheckpoint", "init_args": {"save_last": true}}]'
RUN = (
    *("fit", "--config", "frozen_lake.yaml", "--config", "objective/ppo.yaml", *QUICK, "--data.instances", "2"),
    *("--model.policy.model", TINY, "--data.plan.init_args.count", "2", "--data.evaluations", "[]"),
    *("--trainer.logger", "false", "--trainer.callbacks", CALLBACKS, "--trainer.run_folder", "run"),
)
CPU = torch.device("cpu")


def test_a_resumed_run_has_the_optimizer_that_it_is_given(empty_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    changed = {"learning_rate": 1e-6, "critic_learning_rate": 0.0, "weight_decay": 0.1, "betas": [0.8, 0.9]}
    flags = [f"--model.optimizer.{key}={value}" for key, value in changed.items()]
    tsr(*RUN, "--model.optimizer.learning_rate=1e-3", "--model.optimizer.warmup_updates=0")
    resume = (*RUN, "--trainer.max_epochs", "3", "--ckpt_path", "last", "--model.optimizer.warmup_updates=0")
    trainer = tsr(*resume, *flags).trainer
    policy, critic = trainer.optimizers[0].param_groups
    assert (policy["lr"], policy["initial_lr"], critic["lr"]) == pytest.approx((1e-6, 1e-6, 0.0))
    assert [(group["weight_decay"], group["betas"]) for group in (policy, critic)] == [(0.1, (0.8, 0.9))] * 2
    assert trainer.lr_scheduler_configs[0].scheduler.base_lrs == pytest.approx([1e-6, 0.0])
    said = "the optimizer goes on with model.optimizer.learning_rate 1e-06 (was 0.001), critic_learning_rate 0.0"
    assert said in caplog.text


def adamw_of(optimizer: Optimizer) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))]
    rates = (optimizer.learning_rate, optimizer.critic_learning_rate)
    groups = [
        {"params": [weight], "lr": rate, "name": name}
        for weight, rate, name in zip(weights, rates, ("policy", "critic"), strict=True)
    ]
    adamw = torch.optim.AdamW(groups, betas=optimizer.betas, weight_decay=optimizer.weight_decay)
    return adamw, optimizer.schedule(adamw)


def test_a_rate_that_was_scaled_stays_scaled_and_the_schedule_goes_on() -> None:
    saved = Optimizer(1e-3, 2e-3, warmup_updates=9)
    adamw, schedule = adamw_of(saved)
    for _ in range(4):
        adamw.step()
        schedule.step()
    for place, group in enumerate(adamw.param_groups):  # as `callbacks.Restore` halves them
        schedule.base_lrs[place] /= 2
        group["lr"] /= 2
    new = replace(saved, learning_rate=4e-4, critic_learning_rate=0.0)
    new.take_over(saved, adamw, schedule)
    assert [group["lr"] for group in adamw.param_groups] == pytest.approx([4e-4 / 2 * 0.5, 0.0])
    adamw.step()
    schedule.step()
    assert [group["lr"] for group in adamw.param_groups] == pytest.approx([4e-4 / 2 * 0.6, 0.0])
    saved.take_over(new, adamw, schedule)  # a rate of 0 has no share of what it was
    assert [group["lr"] for group in adamw.param_groups] == pytest.approx([1e-3 / 2 * 0.6, 2e-3 * 0.6])


def test_equal_settings_change_nothing() -> None:
    saved = Optimizer(1e-3, 2e-3, warmup_updates=6, decay="cosine", decay_updates=20)
    adamw, schedule = adamw_of(saved)
    for _ in range(11):
        adamw.step()
        schedule.step()
    before = [{k: v for k, v in group.items() if k != "params"} for group in adamw.param_groups]
    saved.take_over(saved, adamw, schedule)
    assert [{k: v for k, v in group.items() if k != "params"} for group in adamw.param_groups] == before


def test_every_rank_takes_its_own_random_state() -> None:
    states, draws = [], []
    before = RandomState.now(CPU)
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append({"cpu": torch.get_rng_state(), "device": None})
        draws.append(torch.rand(3))
    for rank, drawn in ((0, draws[0]), (1, draws[1]), (2, draws[0])):
        RandomState.of_rank({"rng_states": states}, rank).restore(CPU)
        assert torch.equal(torch.rand(3), drawn)
    RandomState.of_rank({"rng_state": states[1]["cpu"]}, 0).restore(CPU)  # of an earlier version
    assert torch.equal(torch.rand(3), draws[1])
    before.restore(CPU)
