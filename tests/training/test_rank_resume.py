"""A run of which a rank was killed resumes on one, two and three ranks, and ends as one that was not interrupted.

The numbers of one process are those of any number of ranks (`test_ranks.py`), so all is compared with one process that
was not interrupted: rollouts equal token by token, weights to float error.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from processes import free_port
from rank_runs import (
    LORA,
    PPO,
    SECONDS,
    TOLERANCE,
    assert_equal_weights,
    assert_same_draws,
    given_their_rank,
    killed,
    prepared,
    records_of,
)

EPOCHS, CHECKPOINT = 2, "checkpoints/last.ckpt"
SAVE = {
    "class_path": "ModelCheckpoint",
    "init_args": {"dirpath": "checkpoints", "save_last": True, "save_on_train_epoch_end": True},
}
IN_SECOND_EPOCH = 100  # the number of an event, of some 130 in two epochs
MOMENTS = 10


def settings(strategy: str, *, epochs: int = EPOCHS, kill: tuple[int, int] | None = None, **others: Any) -> Any:
    """Of a run that saves every epoch; `kill` is a rank and the event at which it is killed."""
    callbacks = [SAVE]
    if kill is not None:
        arguments = {"rank": kill[0], "event": kill[1]}
        callbacks = [{"class_path": "recording.Killer", "init_args": arguments}, SAVE]
    return {"strategy": strategy, "epochs": epochs, "callbacks": callbacks, **others}


def assert_ends_as(folder: Path, ranks: int, reference: dict[str, Any], tolerance: float) -> None:
    """The rollouts of a run are the last ones of the reference; its steps are as many, and its weights equal."""
    for record in records_of(folder, ranks):
        assert record["ranks"] == ranks
        assert record["steps"] == reference["steps"]
        rollouts = record["groups"]  # those after the checkpoint
        for mine, theirs in zip(rollouts, reference["groups"][-len(rollouts) :], strict=True):
            assert_same_draws(mine, theirs)
        assert_equal_weights(record["after"], reference["after"], tolerance)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of one process that was not interrupted."""
    folder = prepared(tmp_path_factory.mktemp("alone"), PPO, "all", 1, **settings("auto"))
    given_their_rank(folder, 1)
    return records_of(folder, 1)[0]


# One of them in every suite, the others before a release.
EACH = [
    pytest.param("fsdp2", (3,), marks=pytest.mark.slow),
    pytest.param("fsdp2", (1, 2), marks=pytest.mark.exhaustive),
    pytest.param("ddp", (1, 2, 3), marks=pytest.mark.exhaustive),
]


@pytest.mark.timeout(5 * SECONDS)
@pytest.mark.parametrize(("strategy", "resumed_on"), EACH)
def test_a_run_of_which_a_rank_was_killed_resumes_on_any_number(
    strategy: str, resumed_on: tuple[int, ...], alone: dict[str, Any], tmp_path: Path
) -> None:
    """Rank 1 of two is killed between the backward passes of the second epoch, and the same command resumes."""
    prepared(tmp_path, PPO, "all", 2, **settings(strategy, kill=(1, IN_SECOND_EPOCH)))
    killed(tmp_path, rank=1)
    assert not (tmp_path / "rank0.pkl").exists()
    checkpoint = (tmp_path / CHECKPOINT).rename(tmp_path / "two.ckpt")
    for ranks in resumed_on:
        shutil.rmtree(tmp_path / "checkpoints")  # of another run, which a resumed one does not overwrite
        prepared(tmp_path, PPO, "all", ranks, **settings(strategy))
        given_their_rank(tmp_path, ranks, "--ckpt_path", checkpoint)
        assert [len(record["groups"]) for record in records_of(tmp_path, ranks)] == [1] * ranks
        assert_ends_as(tmp_path, ranks, alone, TOLERANCE)
    folders = [tmp_path / "runs" / "corridor" / f"version_{number}" for number in range(1 + len(resumed_on))]
    assert sorted((tmp_path / "runs" / "corridor").iterdir()) == folders  # one of each run, whatever its ranks
    assert all((folder / "config.yaml").is_file() for folder in folders)


@pytest.mark.exhaustive
@pytest.mark.timeout(6 * SECONDS)
def test_strategies_resume_each_others_checkpoints(tmp_path: Path) -> None:
    """With LoRA: one process, then two ranks of FSDP2, then two of DDP, an epoch each."""
    folder = prepared(tmp_path / "alone", PPO, "all", 1, **settings("auto", epochs=3, adapter=LORA))
    given_their_rank(folder, 1)
    [reference] = records_of(folder, 1)
    run = tmp_path / "run"
    for epoch, (strategy, ranks) in enumerate([("auto", 1), ("fsdp2", 2), ("ddp", 2)], start=1):
        prepared(run, PPO, "all", ranks, **settings(strategy, epochs=epoch, adapter=LORA))
        given_their_rank(run, ranks, "--ckpt_path", "last")
    assert_ends_as(run, 2, reference, TOLERANCE)


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * SECONDS)
def test_sharded_ranks_restore_as_one_process_does(tmp_path: Path) -> None:
    """CollapseGuard's Restore after the second epoch, and a third from there."""
    folders = []
    for ranks in (1, 2):
        callbacks = [{"class_path": "recording.Restorer"}]
        folders.append(
            prepared(tmp_path / str(ranks), PPO, "all", ranks, strategy="fsdp2", epochs=3, callbacks=callbacks)
        )
        given_their_rank(folders[-1], ranks)
    [reference] = records_of(folders[0], 1)
    assert_ends_as(folders[1], 2, reference, TOLERANCE)


@pytest.mark.exhaustive
@pytest.mark.timeout(20 * SECONDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_killed_at_random_moments_equals_not_killed_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    """A rank of two is killed at each of ten random events of its run, before the first checkpoint too."""
    folder = prepared(tmp_path / "whole", PPO, "all", 2, **settings(strategy, kill=(0, 0)))
    given_their_rank(folder)
    reference = records_of(folder, 2)[0]
    events = [int((folder / f"events{rank}").read_text()) for rank in range(2)]
    moments = random.Random(17)
    for number in range(MOMENTS):
        rank = moments.randrange(2)
        event = moments.randint(1, events[rank] - 1)  # the last one is the checkpoint of a run that is complete
        run = prepared(tmp_path / str(number), PPO, "all", 2, **settings(strategy, kill=(rank, event)))
        killed(run, rank)
        given_their_rank(run, 2, "--ckpt_path", "last")
        assert_ends_as(run, 2, reference, tolerance=0)


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_torchrun_restarts_a_run_with_a_killed_rank(strategy: str, alone: dict[str, Any], tmp_path: Path) -> None:
    """With the command of docs/scaling.md."""
    prepared(tmp_path, PPO, "all", 2, **settings(strategy, kill=(1, IN_SECOND_EPOCH)))
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", *rendezvous)
    command = ("-m", "tsr_lightning", "fit", "--config", "run.yaml", "--ckpt_path", "last")
    run = subprocess.run(
        [sys.executable, "-m", *map(str, (*launcher, *command))],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "killed").exists()
    assert_ends_as(tmp_path, 2, alone, TOLERANCE)
