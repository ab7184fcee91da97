"""A run that was killed at any moment and resumed ends with the weights of one that was not."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK
from processes import Forked

EPOCHS, KILLED_IN = 4, 2
CHECKPOINTS = '{"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch}", "every_n_epochs": 1, '
CHECKPOINTS += '"save_top_k": 1, "save_last": true, "save_on_train_epoch_end": true}}'


def callbacks(moment: str) -> tuple[str, str]:
    killer = f'{{"class_path": "kill_callback.Killer", "init_args": {{"moment": "{moment}", "epoch": {KILLED_IN}}}}}'
    return "--trainer.callbacks", f"[{CHECKPOINTS}, {killer}]"


def fit(model: Path, moment: str) -> tuple[str, ...]:
    overlays = ("--config", "sokoban.yaml", "--config", "search/beam.yaml", "--config", "objective/ppo.yaml")
    searched = ("--model.objective.init_args.searched", "Unchanged")
    epochs = ("--trainer.max_epochs", str(EPOCHS), "--trainer.check_val_every_n_epoch", "2")
    return ("fit", *overlays, *QUICK, "--model.policy.model", str(model), *epochs, *searched, *callbacks(moment))


def status_of(folder: Path, *args: object) -> tuple[int, str]:
    """The exit status and the output of `tsr` in another process."""
    run = Forked(args, folder, {}, folder / "output.txt")
    return run.wait(240), run.output()


def result(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "final.pt", weights_only=True)


def rollouts(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "rollouts.txt").read_text().split()]


@pytest.fixture(scope="module")
def uninterrupted(tiny_model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    status, output = status_of(folder, *fit(tiny_model("sokoban"), "never"))
    assert status == 0, output
    assert rollouts(folder) == list(range(EPOCHS))
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("resume")  # of parallel workers one makes the uninterrupted run
@pytest.mark.parametrize("moment", ["rollout", pytest.param("update", marks=pytest.mark.exhaustive), "checkpoint"])
def test_a_killed_and_resumed_run_equals_the_uninterrupted(
    moment: str, uninterrupted: Path, tiny_model, tmp_path: Path
):
    status, output = status_of(tmp_path, *fit(tiny_model("sokoban"), moment))
    assert status == -signal.SIGKILL, output
    assert not (tmp_path / "final.pt").exists()
    assert rollouts(tmp_path) == list(range(KILLED_IN + (moment != "rollout")))
    first = tmp_path / "runs" / "sokoban" / "version_0"
    unfinished = {path.name for path in first.rglob(".*")}
    assert unfinished == {".lock"} | ({".last.ckpt.part"} if moment == "checkpoint" else set())

    (tmp_path / "rollouts.txt").unlink()
    # what a user types: the configuration and the checkpoint of the killed run
    last = ("--config", first / "config.yaml", "--ckpt_path", first / "checkpoints" / "last.ckpt")
    status, output = status_of(tmp_path, "fit", *last, *callbacks("never"))
    assert status == 0, output
    assert rollouts(tmp_path) == list(range(KILLED_IN, EPOCHS))
    assert not list(tmp_path.rglob(".*"))  # neither a lock nor a part of a checkpoint

    ours, theirs = result(tmp_path), result(uninterrupted)
    assert ours["updates"] == theirs["updates"] == 2 * EPOCHS
    assert ours["weights"].keys() == theirs["weights"].keys()
    for name, weight in theirs["weights"].items():
        assert torch.equal(weight, ours["weights"][name]), name
    assert ours["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    for number, state in theirs["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, ours["optimizer"]["state"][number][name]), (number, name)
