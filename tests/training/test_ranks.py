"""Two processes under DDP or FSDP2 make the same draws, steps and weights as one alone, in real runs of `tsr fit`.

In one case Lightning starts the second rank, as for a user; in the others both get their rank, as from `torchrun`.
"""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, in_folder, tsr
from rank_runs import (
    GRPO,
    GRPO_WITH_REFERENCE,
    LORA,
    PPO,
    SECONDS,
    TOLERANCE,
    assert_equal_weights,
    assert_same_draws,
    given_their_rank,
    prepared,
    records_of,
)

MIXTURE = [
    {"env": "corridor:Corridor-v0", "weight": 2},
    {"env": "tsr/FrozenLake-v0", "env_kwargs": {"prompt_style": "bare", "max_turns": 4}},
]


TOKENS = "cost/update_tokens_computed"
LOGGER = {"class_path": "CSVLogger", "init_args": {"save_dir": ".", "name": "", "version": "log"}}


def logged(folder: Path, tag: str) -> list[float]:
    """A figure of every epoch."""
    with (folder / "log" / "metrics.csv").open(newline="") as file:
        return [float(row[tag]) for row in csv.DictReader(file) if row.get(tag)]


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
    "PPO, sharded": (PPO, "all", 2, given_their_rank),
    # the reference is a frozen copy of all weights, or the model without its adapter
    "GRPO with a reference, sharded": (GRPO_WITH_REFERENCE, "all", 2, given_their_rank),
    "GRPO with LoRA and a reference, sharded": (GRPO_WITH_REFERENCE, "all", 2, given_their_rank),
}

# what the others have in another combination
ONLY_EXHAUSTIVE = (
    "PPO",
    "PPO, an epoch without a group",
    "PPO, a mixture",
    "GRPO, one rank's groups",
    "GRPO, dynamic sampling",
    "PPO, sharded",
    "GRPO with a reference, sharded",
    "GRPO with LoRA and a reference, sharded",
)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 60)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (case in ONLY_EXHAUSTIVE)) for case in CASES]
)
def test_two_ranks_equal_one_process(case: str, tmp_path: Path) -> None:
    """The same draws, the same number of optimizer steps, weights equal to the bit on both ranks and equal to one
    process's within the tolerance above."""
    objective, keep, trained_epochs, start = CASES[case]
    mixture, dynamic, sharded = "mixture" in case, "dynamic sampling" in case, "sharded" in case
    settings: dict[str, Any] = {"env": MIXTURE} if mixture else {}
    settings["trainer"] = {"logger": LOGGER, "log_every_n_steps": 1}
    if dynamic:
        settings["dynamic_sampling"] = {"groups": 5, "max_sampled_tokens": 1000}
    if sharded:
        settings["strategy"] = "fsdp2"
    if "LoRA" in case:
        settings["adapter"] = LORA
    one, two = (prepared(tmp_path / str(ranks), objective, keep, ranks, **settings) for ranks in (1, 2))
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
        assert record["shards"] == ({"DTensor"} if sharded else {"Parameter"})
        assert record["steps"] == alone["steps"] == trained_epochs * 2 * 2  # passes, minibatches
        for mine, theirs in zip(record["groups"], alone["groups"], strict=True):
            assert_same_draws(mine, theirs)
    assert [len(groups) > 3 for groups in alone["groups"]] == [dynamic, dynamic]
    assert both[0]["micro_batches"] == both[1]["micro_batches"]
    assert max(both[0]["micro_batches"]) > 4  # several a step, or their sharing was not tested
    for mine, theirs in zip(logged(two, TOKENS), logged(one, TOKENS), strict=True):
        assert mine > 0.75 * theirs  # of both ranks, which share other prefixes

    first, second = (record["after"] for record in both)
    assert_equal_weights(first, alone["after"], TOLERANCE)
    assert_equal_weights(first, second, 0)
    for name in alone["before"]:
        assert torch.equal(both[0]["before"][name], alone["before"][name]), name
    moved = max(float((weight - alone["before"][name]).abs().max()) for name, weight in alone["after"].items())
    assert moved > 100 * TOLERANCE
    if objective is PPO:
        assert any(name.startswith("value_head") for name in first)
