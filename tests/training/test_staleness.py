"""Runs whose rollouts are collected while the updates run."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK, in_folder, tsr
from lightning.pytorch import Callback
from torch import Tensor

from callbacks.on_collapse import restore
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.rollout.groups import SingleProcess, epoch_tasks, roll_out
from tsr_lightning.search.progress import unreported
from tsr_lightning.training.lightning_compat import epochs_at_rollout
from tsr_lightning.training.setting_checks import check_staleness
from tsr_lightning.trajectory import Group

EPOCHS = 4


class Recorder(Callback):
    """Keeps the rollouts and the weights before each epoch's updates, and the thread of every hook.

    Args:
        staleness: compares each rollout with one that the policy itself plays with the weights of so many epochs ago.
        restores_after: the epochs after which the first weights come back.
        update_seconds: that every update takes longer.
        fails: raises a KeyboardInterrupt at the first update.
        saves: a checkpoint after two epochs, and one before the updates of the next.
    """

    def __init__(
        self,
        staleness: int | None = None,
        restores_after: int | None = None,
        update_seconds: float = 0.0,
        fails: bool = False,
        saves: bool = False,
    ) -> None:
        self.staleness = staleness
        self.restores_after = restores_after
        self.update_seconds = update_seconds
        self.fails = fails
        self.saves = saves
        self.groups: list[list[Group]] = []
        self.weights: dict[int, dict[str, Tensor]] = {}  # by the epochs trained
        self.threads: set[str] = set()
        self.figures: list[dict[str, float]] = []
        self.played_by: list[int] = []
        self.wrong: list[int] = []

    def on_rollout_wave(self, trainer: Any, progress: Any) -> None:
        self.threads.add(threading.current_thread().name)

    def on_rollout_metrics(self, trainer: Any, metrics: Any, epochs: int) -> None:
        self.figures.append({**metrics, "epochs": epochs})

    def on_rollout_end(self, trainer: Any, agent: Any, groups: list[Group]) -> list[Group]:
        self.threads.add(threading.current_thread().name)
        epoch = epochs_at_rollout(trainer)
        self.groups.append(groups)
        self.weights[epoch] = agent.policy.snapshot()
        if self.saves and epoch == 2:
            trainer.save_checkpoint("in_epoch_2.ckpt")
        if self.staleness is not None:
            policy = max(0, epoch - self.staleness)
            if epoch == 0:
                trainer.save_checkpoint("start.ckpt")
            if epoch == self.restores_after:
                policy = epoch
            self.played_by.append(policy)
            if self.played(trainer.datamodule, agent, groups, epoch, policy) != groups:
                self.wrong.append(epoch)
        return groups

    def played(self, data: Any, agent: Any, groups: list[Group], epoch: int, policy: int) -> list[Group]:
        """The same instances by the policy in training, as if no rollout was collected ahead."""
        agent.policy.load_trainable_state(self.weights[policy])
        instances = [(group.env, group.instance) for group in groups]
        tasks = epoch_tasks(instances, data.plan.entries(epoch), data.key, epoch)
        found = roll_out(data.actor.driver(policy_epochs=policy), tasks, unreported, SingleProcess()).groups
        agent.policy.load_trainable_state(self.weights[epoch])
        return found

    def on_before_optimizer_step(self, trainer: Any, agent: Any, optimizer: Any) -> None:
        time.sleep(self.update_seconds)
        if self.fails:
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: Any, agent: Any) -> None:
        if self.saves and epochs_at_rollout(trainer) == 2:
            trainer.save_checkpoint("after_2_epochs.ckpt")
        if epochs_at_rollout(trainer) == self.restores_after:
            restore(trainer, agent, "start.ckpt", learning_rate_factor=1.0)


@pytest.fixture
def fit(tiny_model: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Some epochs of a tiny Sokoban policy, with large steps; further flags, and arguments of the Recorder."""

    def run(*flags: object, epochs: int = EPOCHS, objective: str = "grpo", **recorder: Any) -> tuple[Any, Recorder]:
        arguments = ", ".join(f'"{key}": {str(value).lower()}' for key, value in recorder.items() if value is not None)
        callback = f'{{"class_path": "test_staleness.Recorder", "init_args": {{{arguments}}}}}'
        names = ("sokoban.yaml", "search/sample.yaml", f"objective/{objective}.yaml")
        overlays = [part for name in names for part in ("--config", name)]
        quick = (*QUICK, "--trainer.max_epochs", epochs, "--trainer.limit_val_batches", 0)
        quick += ("--trainer.enable_checkpointing", "false")
        rates = ("--model.optimizer.learning_rate", 0.01, "--model.policy.model", tiny_model("sokoban"))
        with in_folder(tmp_path):
            cli = tsr("fit", *overlays, *quick, *rates, "--trainer.callbacks", f"[{callback}]", *flags)
        [recorded] = [each for each in cli.trainer.callbacks if type(each).__name__ == "Recorder"]
        return cli, recorded

    yield run
    assert [thread for thread in threading.enumerate() if thread.name == "rollouts"] == []


def weights(run: tuple[Any, Recorder]) -> dict[str, Tensor]:
    return run[0].model.policy.snapshot()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def moved(recorder: Recorder) -> bool:
    """Whether every epoch changed the weights."""
    return all(not same(recorder.weights[e], recorder.weights[e + 1]) for e in range(len(recorder.weights) - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("staleness", "objective"), [pytest.param(1, "grpo", marks=pytest.mark.exhaustive), (2, "ppo")]
)
def test_rollouts_are_those_of_the_policy_so_many_epochs_ago(fit, staleness: int, objective: str) -> None:
    _, recorder = fit("--data.staleness", staleness, objective=objective, staleness=staleness)
    assert recorder.wrong == []
    assert moved(recorder)
    assert recorder.threads == {"MainThread"}
    expected = [max(0, epoch - staleness) for epoch in range(EPOCHS)]
    versions = [{t.policy_epochs for group in groups for t in group.trajectories} for groups in recorder.groups]
    assert versions == [{each} for each in expected]
    assert [figures["epochs"] for figures in recorder.figures] == expected
    assert [figures["rollout/staleness"] for figures in recorder.figures] == [
        epoch - policy for epoch, policy in enumerate(expected)
    ]


@pytest.mark.slow
def test_the_first_rollout_and_its_updates_are_those_without_staleness(fit) -> None:
    """Collected by a copy in another thread, and equal to the last bit."""
    beside, before = fit("--data.staleness", 1, epochs=2), fit("--data.staleness", 0, epochs=2, staleness=0)
    assert before[1].groups[0] == beside[1].groups[0]
    assert same(before[1].weights[1], beside[1].weights[1])
    assert before[1].groups[1] != beside[1].groups[1]
    assert before[1].wrong == []


@pytest.mark.slow
def test_what_takes_how_long_changes_nothing(fit) -> None:
    first, second = fit("--data.staleness", 1), fit("--data.staleness", 1, update_seconds=0.05)
    assert moved(first[1])
    assert first[1].groups == second[1].groups
    assert same(weights(first), weights(second))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("staleness", "saved"),
    [pytest.param(1, "after_2_epochs.ckpt", marks=pytest.mark.exhaustive), (2, "in_epoch_2.ckpt")],
)
def test_a_resumed_run_equals_one_that_was_not_stopped(fit, staleness: int, saved: str, tmp_path: Path) -> None:
    """From an epoch's end, and from a rollout whose updates were not made."""
    flags = ("--data.staleness", staleness)
    whole = fit(*flags, saves=True)
    resumed = fit(*flags, "--ckpt_path", tmp_path / saved)
    assert moved(whole[1])
    assert len(resumed[1].groups) == EPOCHS - 2
    assert resumed[1].groups == whole[1].groups[2:]
    assert same(weights(resumed), weights(whole))


@pytest.mark.slow
def test_rollouts_after_a_restore_are_of_the_restored_policy(fit) -> None:
    _, recorder = fit("--data.staleness", 1, staleness=1, restores_after=2)
    assert recorder.played_by == [0, 0, 2, 2]
    assert recorder.wrong == []
    assert same(recorder.weights[2], recorder.weights[0])
    assert not same(recorder.weights[1], recorder.weights[0])


def test_a_run_that_is_interrupted_ends_its_thread(fit) -> None:
    with pytest.raises(SystemExit):
        fit("--data.staleness", 1, fails=True)


def test_an_error_in_the_thread_ends_the_run_as_it_is(fit) -> None:
    kwargs = '{"env": "tsr/Sokoban-v0", "raises": 1.0, "after": 64}'  # the vocabulary's steps
    with pytest.raises(RunError, match=r"rollouts failed in epoch 0 \(limit"):
        fit("--data.staleness", 1, "--data.env", "tests.misbehaving:Misbehaving-v0", "--data.env_kwargs", kwargs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, Updates(), 1, "32-true"), r"data\.staleness is -1: give 0 to collect"),
        (
            (1, Updates(reuse_logprobs=True), 1, "32-true"),
            r"data\.staleness is 1: data\.updates\.reuse_logprobs",
        ),
        (
            (1, Updates(mismatch_tolerance=0.1), 1, "32-true"),
            r"data\.staleness is 1: data\.updates\.mismatch",
        ),
        ((2, Updates(), 2, "32-true"), r"data\.staleness is 2: .* single process, and there are 2"),
        ((1, Updates(), 1, "bf16-true"), r"data\.staleness is 1: trainer\.precision bf16-true"),
    ],
)
def test_what_does_not_go_with_staleness_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_staleness(*arguments)


def test_without_staleness_nothing_is_refused() -> None:
    check_staleness(0, Updates(reuse_logprobs=True), 2, "bf16-true")
    check_staleness(1, Updates(reuse_logprobs="auto"), 1, "bf16-mixed")
