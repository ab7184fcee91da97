"""Two processes under DDP make the same draws, steps and weights as one alone, in real runs of `tsr fit`.

In one case Lightning starts the second rank, as for a user; in the others both get their rank, as from `torchrun`.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, in_folder, tsr
from processes import run_as_ranks

from tsr_lightning.trajectory import Group, Turn

SECONDS = 240  # a run takes about ten; a longer one waits for a rank that has failed
# Ranks sum gradients in another order than one process does. AdamW divides by their size, so that an error of 1e-7 of
# a gradient becomes one of a step; with steps of 1e-3 the weights, of size 0.02 to 1, come to differ by about 1e-6.
TOLERANCE = 2e-5

# Written beside the runs, and found by the class path `recording.Recorder` in every process.
RECORDING = '''
import pickle
from lightning.pytorch.callbacks import Callback

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
        record = {
            "ranks": trainer.world_size,
            "groups": self.groups,
            "steps": trainer.global_step,
            "warmed_up": trainer.lr_scheduler_configs[0].scheduler.last_epoch,
            "validations": self.validations,
            "micro_batches": self.micro_batches,
            "before": self.before,
            "after": agent.policy.trainable_state(),
        }
        with open(f"{self.folder}/rank{trainer.global_rank}.pkl", "wb") as file:
            pickle.dump(record, file)
'''

PPO = {"class_path": "tsr_lightning.objectives.PPO"}
GRPO = {"class_path": "tsr_lightning.objectives.GRPO"}
STRATEGIES = "tsr_lightning.search.strategies"
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}


MIXTURE = [
    {"env": "corridor:Corridor-v0", "weight": 2},
    {"env": "tsr/FrozenLake-v0", "env_kwargs": {"prompt_style": "bare", "max_turns": 4}},
]


def config(folder: Path, objective: dict[str, Any], keep: str, ranks: int, **data: Any) -> dict[str, Any]:
    """Three instances, so that one rank of two has more than the other, of a task in which the returns of an untrained
    policy differ."""
    entries = [("Sample", {}, 3), ("Beam", {"width": 2, "candidates": 2}, 1)]
    members = [
        {"strategy": {"class_path": f"{STRATEGIES}.{name}", "init_args": arguments}, "count": count}
        for name, arguments, count in entries
    ]
    return {
        "seed_everything": 5,
        "trainer": {
            "accelerator": "cpu",
            "devices": ranks,
            "strategy": "ddp" if ranks > 1 else "auto",
            "max_epochs": 2,
            "num_sanity_val_steps": 0,
            "gradient_clip_val": 1.0,
            "reload_dataloaders_every_n_epochs": 0,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [{"class_path": "recording.Recorder", "init_args": {"folder": str(folder), "keep": keep}}],
        },
        "model": {
            "policy": {
                "model": MODEL,
                "adapter": None,
            },
            "objective": objective,
            "optimizer": {"learning_rate": 1e-3, "critic_learning_rate": 1e-3, "warmup_updates": 2},
        },
        "data": {
            "env": "corridor:Corridor-v0",
            "plan": {"class_path": "tsr_lightning.search.plan.Mixed", "init_args": {"members": members}},
            "instances": 3,
            "held_out": {"instances": 2},
            "sampling": {"max_response_tokens": 8},
            "updates": {"epochs": 2, "minibatches": 2, "micro_batch_tokens": 60},
            **data,
        },
    }


def prepared(folder: Path, objective: dict[str, Any], keep: str, ranks: int, **data: Any) -> Path:
    folder.mkdir()
    (folder / "recording.py").write_text(RECORDING)
    shutil.copy(ROOT / "tests" / "corridor.py", folder)
    (folder / "run.yaml").write_text(json.dumps(config(folder, objective, keep, ranks, **data)))  # JSON is YAML
    return folder


def records_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """The record of each rank."""
    return [pickle.loads((folder / f"rank{rank}.pkl").read_bytes()) for rank in range(ranks)]


def launched_by_lightning(folder: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "tsr_lightning", "fit", "--config", "run.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a rank that hangs is killed with it
    )
    try:
        output, _ = run.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        output, _ = run.communicate()
        pytest.fail(f"2 ranks did not end within {SECONDS} seconds:\n{output}")
    assert run.returncode == 0, output


def given_their_rank(folder: Path) -> None:
    run_as_ranks(("fit", "--config", "run.yaml"), folder, SECONDS)


CASES = {
    "GRPO": (GRPO, "all", 2, launched_by_lightning),
    "PPO": (PPO, "all", 2, given_their_rank),
    "PPO, a mixture": (PPO, "all", 2, given_their_rank),
    # all groups that are kept were rolled out by rank 0
    "GRPO, one rank's groups": (GRPO, "one rank's", 2, given_their_rank),
    # three instances a round
    "GRPO, dynamic sampling": (GRPO, "all", 2, given_their_rank),
    # no rank may wait for an update that the other does not make
    "PPO, an epoch without a group": (PPO, "none, then all", 1, given_their_rank),
}


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 60)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(case: str, tmp_path: Path) -> None:
    """The same draws, the same number of optimizer steps, weights equal to the bit on both ranks and equal to one
    process's within the tolerance above."""
    objective, keep, trained_epochs, start = CASES[case]
    mixture, dynamic = "mixture" in case, "dynamic sampling" in case
    data: dict[str, Any] = {"env": MIXTURE} if mixture else {}
    if dynamic:
        data["dynamic_sampling"] = {"groups": 5, "max_sampled_tokens": 1000}
    one, two = (prepared(tmp_path / str(ranks), objective, keep, ranks, **data) for ranks in (1, 2))
    with in_folder(one):
        tsr("fit", "--config", "run.yaml")
    start(two)
    [alone], both = records_of(one, 1), records_of(two, 2)
    assert len({group.env for groups in alone["groups"] for group in groups}) == (2 if mixture else 1)
    assert [record["ranks"] for record in (alone, *both)] == [1, 2, 2]

    for record in (alone, *both):
        assert record["warmed_up"] == record["steps"]  # the warm-up counts updates
        assert record["validations"] == 2  # an epoch without an update validates too
    for record in both:
        assert record["steps"] == alone["steps"] == trained_epochs * 2 * 2  # passes, minibatches
        for mine, theirs in zip(record["groups"], alone["groups"], strict=True):
            assert_same_draws(mine, theirs)
    assert [len(groups) > 3 for groups in alone["groups"]] == [dynamic, dynamic]
    assert both[0]["micro_batches"] == both[1]["micro_batches"]
    assert max(both[0]["micro_batches"]) > 4  # several a step, or their sharing was not tested

    first, second = (record["after"] for record in both)
    assert first.keys() == second.keys() == alone["after"].keys()
    for name, weight in alone["after"].items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], weight, rtol=0, atol=TOLERANCE, msg=lambda m, name=name: f"{name}: {m}")
        assert torch.equal(both[0]["before"][name], alone["before"][name]), name
    moved = max(float((weight - alone["before"][name]).abs().max()) for name, weight in alone["after"].items())
    assert moved > 100 * TOLERANCE
    if objective is PPO:
        assert any(name.startswith("value_head") for name in first)


def assert_same_draws(mine: list[Group], theirs: list[Group]) -> None:
    """Trajectories are equal; log-probabilities, computed in batches of another size, nearly so."""
    assert [without_logprobs(group) for group in mine] == [without_logprobs(group) for group in theirs]
    assert len({group.instance for group in mine}) == len(mine) >= 3
    for one, other in zip(turns(mine), turns(theirs), strict=True):
        assert one.behaviour_logprobs == pytest.approx(other.behaviour_logprobs, abs=1e-4)


def without_logprobs(group: Group) -> Any:
    members = [
        replace(trajectory, turns=tuple(replace(turn, behaviour_logprobs=()) for turn in trajectory.turns))
        for trajectory in group.trajectories
    ]
    return group.env, group.instance, [astuple(trajectory) for trajectory in members]


def turns(groups: list[Group]) -> list[Turn]:
    return [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
