"""An epoch in which no group is left to train on validates and saves, and makes no update."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK, tsr
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.trajectory import Group


class Emptying(Callback):
    """Removes all groups of some epochs, and records the state after each epoch.

    Args:
        epochs: whose groups are removed.
    """

    def __init__(self, epochs: list[int]) -> None:
        self.epochs = epochs
        self.rollouts = 0
        self.states: list[dict[str, Any]] = []
        self.validated: list[int] = []

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self.rollouts += 1
        return [] if self.rollouts - 1 in self.epochs else groups

    def teardown(self, trainer: Trainer, agent: LightningModule, stage: str) -> None:
        self.accumulation = trainer.accumulate_grad_batches

    def on_validation_end(self, trainer: Trainer, agent: LightningModule) -> None:
        self.validated.append(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, agent: LightningModule) -> None:
        [optimizer] = trainer.optimizers
        state = {
            "weights": agent.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict()["last_epoch"],
            "updates": trainer.global_step,
        }
        self.states.append(copy.deepcopy(state))


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def run(model: Path, epochs: Iterable[int], *args: str) -> Emptying:
    """Three epochs of two updates, with two parameter groups, clipping and warm-up."""
    checkpoints = '{"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch}", "every_n_epochs": 1, '
    checkpoints += '"save_top_k": -1, "save_last": true, "save_on_train_epoch_end": true}}'
    emptying = f'{{"class_path": "{__name__}.Emptying", "init_args": {{"epochs": {list(epochs)}}}}}'
    cli = tsr(
        *("fit", "--config", "sokoban.yaml", "--config", "objective/ppo.yaml", *QUICK, "--model.policy.model", model),
        *("--trainer.callbacks", f"[{emptying}, {checkpoints}]", "--trainer.max_epochs", "3"),
        *("--trainer.check_val_every_n_epoch", "1", "--trainer.gradient_clip_val", "0.1"),
        *("--model.optimizer.learning_rate", "0.0006", "--model.optimizer.warmup_updates", "5", *args),
    )
    return next(callback for callback in cli.trainer.callbacks if isinstance(callback, Emptying))


@pytest.mark.parametrize(
    ("empty", "accumulate"),
    [
        (0, "1"),
        (1, "3"),
        pytest.param(0, "3", marks=pytest.mark.exhaustive),
        pytest.param(1, "1", marks=pytest.mark.exhaustive),
    ],
)
def test_an_empty_epoch_changes_nothing_and_training_continues(
    empty: int, accumulate: str, tiny_model, empty_folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    record = run(tiny_model("sokoban"), [empty], "--trainer.accumulate_grad_batches", accumulate)
    assert record.rollouts == 3
    assert [state["updates"] for state in record.states] == [[0, 2, 4], [2, 2, 4]][empty]
    assert [state["schedule"] for state in record.states] == [[0, 2, 4], [2, 2, 4]][empty]  # the warm-up counts updates
    if empty:
        assert same(record.states[0], record.states[1])
    else:
        assert record.states[0]["optimizer"]["state"] == {}
    assert not same(record.states[1]["weights"], record.states[2]["weights"])
    # one step of warm-up in six per update
    assert record.states[2]["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.0006 * 5 / 6)

    assert record.validated == [0, 1, 2]
    assert record.accumulation == int(accumulate)  # a second `fit` of the same Trainer asks for as many again
    messages = [entry.message for entry in caplog.records if "no update" in entry.message]
    assert messages == [f"epoch {empty}: no update, because none of the 4 groups was left to train on"]
    saved = {path.name for path in empty_folder.rglob("*.ckpt")}
    assert saved == {"epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"}


def test_a_run_of_empty_epochs_changes_no_weight(tiny_model, empty_folder: Path):
    record = run(tiny_model("sokoban"), [0, 1, 2])
    assert [state["updates"] for state in record.states] == [0, 0, 0]
    assert same(record.states[0], record.states[2])
    assert record.validated == [0, 1, 2]


def test_draws_after_an_empty_epoch_depend_on_the_epoch_alone(tiny_model, empty_folder: Path):
    """And not on the updates before it."""
    first, second = run(tiny_model("sokoban"), [1]), run(tiny_model("sokoban"), [1])
    assert same(first.states, second.states)
    untouched = run(tiny_model("sokoban"), [])
    assert same(untouched.states[0], first.states[0])
    assert not same(untouched.states[1], first.states[1])
