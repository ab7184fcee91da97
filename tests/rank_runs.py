"""Runs of `tsr fit` as several ranks, which write down their groups, counts and weights; the same run on any number of
ranks, under any strategy, from any checkpoint.
"""

import json
import pickle
import shutil
import signal
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT
from processes import run_as_ranks, start_ranks

from tsr_lightning.trajectory import Group, Turn

SECONDS = 240  # a run takes about ten; a longer one waits for a rank that has failed
# Ranks sum gradients in another order than one process does. AdamW divides by their size, so that an error of 1e-7 of
# a gradient becomes one of a step; with steps of 1e-3 the weights, of size 0.02 to 1, come to differ by about 1e-6.
TOLERANCE = 2e-5

# Written beside the runs, and found by its class paths `recording.…` in every process.
RECORDING = '''
import os
import pickle
import signal
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback

from callbacks import PromptInformation
from callbacks.on_collapse import restore


class Recorder(Callback):
    """Keeps some groups of each epoch, and writes down a rank's groups, counts and weights."""

    def __init__(self, folder: str, keep: str) -> None:
        self.folder, self.keep = folder, keep
        self.groups, self.micro_batches, self.validations, self.before = [], [], 0, None

    def on_train_start(self, trainer, agent):
        self.before = {name: value.clone() for name, value in agent.policy.trainable_state().items()}

    def on_rollout_end(self, trainer, agent, groups):
        epoch = len(self.groups)
        self.groups.append(groups)
        self.micro_batches.append(0)
        if self.keep == "none, then all":
            return groups if epoch else []
        return groups[::2] if self.keep == "one rank's" else groups

    def on_train_batch_end(self, trainer, agent, outputs, batch, batch_idx):
        self.micro_batches[-1] += batch is not None

    def on_validation_end(self, trainer, agent):
        self.validations += 1

    def on_train_end(self, trainer, agent):
        [optimizer] = trainer.optimizers
        record = {
            "ranks": trainer.world_size,
            "groups": self.groups,
            "steps": trainer.global_step,
            "warmed_up": trainer.lr_scheduler_configs[0].scheduler.last_epoch,
            "validations": self.validations,
            "micro_batches": self.micro_batches,
            "before": self.before,
            "after": agent.policy.trainable_state(),
            "information": [one.of_training() for one in trainer.callbacks if isinstance(one, PromptInformation)],
            "shards": {type(p).__name__ for group in optimizer.param_groups for p in group["params"]},
        }
        with open(f"{self.folder}/rank{trainer.global_rank}.pkl", "wb") as file:
            pickle.dump(record, file)


class Restorer(Callback):
    """Saves after the first epoch, and after the second goes back to that."""

    def on_train_epoch_end(self, trainer, agent):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint("saved.ckpt")
        if trainer.current_epoch == 1:
            restore(trainer, agent, "saved.ckpt", 0.5)


class Killer(Callback):
    """Kills a rank at its n-th event, in the first run of a folder alone; counts the events of a whole run.

    Events are waves of rollouts and evaluations, backward passes, ends of micro-batches, and checkpoints.
    """

    def __init__(self, rank: int, event: int) -> None:
        self.rank, self.event, self.count = rank, event, 0

    def _event(self, trainer):
        self.count += 1
        if trainer.global_rank == self.rank and self.count == self.event and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_rollout_wave(self, trainer, progress):
        self._event(trainer)

    def on_train_batch_end(self, trainer, agent, outputs, batch, batch_idx):
        self._event(trainer)

    def on_after_backward(self, trainer, agent):
        self._event(trainer)

    def on_save_checkpoint(self, trainer, agent, checkpoint):
        self._event(trainer)

    def on_train_end(self, trainer, agent):
        Path(f"events{trainer.global_rank}").write_text(str(self.count))
'''

PPO = {"class_path": "tsr_lightning.objectives.PPO"}
GRPO = {"class_path": "tsr_lightning.objectives.GRPO"}
GRPO_WITH_REFERENCE = {**GRPO, "init_args": {"kl": {"class_path": "K3", "init_args": {"coefficient": 0.1}}}}
LORA = {"rank": 4, "alpha": 4}
STRATEGIES = "tsr_lightning.search.strategies"
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}


def mixed(*entries: tuple[str, dict[str, Any], int]) -> dict[str, Any]:
    """A plan of strategies by their names, arguments and numbers of trajectories."""
    members = [
        {"strategy": {"class_path": f"{STRATEGIES}.{name}", "init_args": arguments}, "count": count}
        for name, arguments, count in entries
    ]
    return {"class_path": "tsr_lightning.search.plan.Mixed", "init_args": {"members": members}}


def config(
    folder: Path,
    objective: dict[str, Any],
    keep: str,
    ranks: int,
    *,
    strategy: str = "ddp",
    epochs: int = 2,
    adapter: dict[str, Any] | None = None,
    callbacks: Sequence[dict[str, Any]] = (),
    trainer: dict[str, Any] | None = None,
    **data: Any,
) -> dict[str, Any]:
    """Three instances, so that one rank of two has more than the other, of a task in which the returns of an untrained
    policy differ."""
    recorder = {"class_path": "recording.Recorder", "init_args": {"folder": str(folder), "keep": keep}}
    return {
        "seed_everything": 5,
        "trainer": {
            "accelerator": "cpu",
            "devices": ranks,
            "strategy": strategy if ranks > 1 else "auto",
            "max_epochs": epochs,
            "check_val_every_n_epoch": 1,
            "num_sanity_val_steps": 0,
            "gradient_clip_val": 1.0,
            "reload_dataloaders_every_n_epochs": 0,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": any("ModelCheckpoint" in one["class_path"] for one in callbacks),
            "callbacks": [recorder, *callbacks],
            **(trainer or {}),
        },
        "model": {
            "policy": {"model": MODEL, "adapter": adapter},
            "objective": objective,
            "optimizer": {"learning_rate": 1e-3, "critic_learning_rate": 1e-3, "warmup_updates": 2},
        },
        "data": {
            "env": "corridor:Corridor-v0",
            "plan": mixed(("Sample", {}, 3), ("Beam", {"width": 2, "candidates": 2}, 1)),
            "instances": 3,
            "held_out": {"instances": 1},  # fewer than ranks
            "sampling": {"max_response_tokens": 8},
            "updates": {"epochs": 2, "minibatches": 2, "micro_batch_tokens": 60},
            **data,
        },
    }


def prepared(folder: Path, objective: dict[str, Any], keep: str, ranks: int, **settings: Any) -> Path:
    """A folder with `run.yaml` and what it imports."""
    folder.mkdir(exist_ok=True)
    (folder / "recording.py").write_text(RECORDING)
    shutil.copy(ROOT / "tests" / "corridor.py", folder)
    (folder / "run.yaml").write_text(json.dumps(config(folder, objective, keep, ranks, **settings)))  # JSON is YAML
    return folder


def records_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """The record of each rank."""
    return [pickle.loads((folder / f"rank{rank}.pkl").read_bytes()) for rank in range(ranks)]


def given_their_rank(folder: Path, ranks: int = 2, *flags: object) -> None:
    """Runs `run.yaml` as processes that get their rank, as from `torchrun`."""
    run_as_ranks(("fit", "--config", "run.yaml", *flags), folder, SECONDS, ranks=ranks)


def killed(folder: Path, rank: int, ranks: int = 2) -> None:
    """Runs `run.yaml`, of which one rank kills itself; the others end with an error, and are killed if they wait."""
    runs = start_ranks(("fit", "--config", "run.yaml", "--ckpt_path", "last"), folder, ranks=ranks)
    try:
        assert runs[rank].wait(SECONDS) == -signal.SIGKILL, runs[rank].output()
        for run in runs:
            assert run.wait(60) != 0, run.output()
    finally:
        for run in runs:
            run.kill()


def assert_equal_weights(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    assert mine.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(mine[name], weight, rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def assert_same_draws(mine: list[Group], theirs: list[Group]) -> None:
    """Trajectories are equal; log-probabilities, computed in batches of another size, nearly so."""
    assert [without_logprobs(group) for group in mine] == [without_logprobs(group) for group in theirs]
    assert len({group.instance for group in mine}) == len(mine) >= 3
    for one, other in zip(turns(mine), turns(theirs), strict=True):
        assert one.behaviour_logprobs == pytest.approx(other.behaviour_logprobs, abs=1e-4)


def without_logprobs(group: Group) -> Any:
    members = [
        replace(
            trajectory,
            turns=tuple(replace(turn, behaviour_logprobs=()) for turn in trajectory.turns),
            tree=tuple(replace(each, turn=replace(each.turn, behaviour_logprobs=())) for each in trajectory.tree),
        )
        for trajectory in group.trajectories
    ]
    return group.env, group.instance, [astuple(trajectory) for trajectory in members]


def turns(groups: list[Group]) -> list[Turn]:
    return [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
