"""A run that was killed at any moment and resumed ends with the weights of one that was not."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK
from processes import Forked

from tsr_lightning.training import checkpoints
from tsr_lightning.training.lightning_compat import Position

EPOCHS, KILLED_IN = 4, 2
CHECKPOINTS = '{"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch}", "every_n_epochs": 1, '
CHECKPOINTS += '"save_top_k": 1, "save_last": true, "save_on_train_epoch_end": true}}'


def callbacks(moment: str, epoch: int = KILLED_IN, by: str = "SIGKILL") -> tuple[str, str]:
    arguments = json.dumps({"moment": moment, "epoch": epoch, "by": by})
    killer = f'{{"class_path": "kill_callback.Killer", "init_args": {arguments}}}'
    return "--trainer.callbacks", f"[{CHECKPOINTS}, {killer}]"


def fit(model: Path, moment: str, epoch: int = KILLED_IN, by: str = "SIGKILL") -> tuple[str, ...]:
    overlays = ("--config", "sokoban.yaml", "--config", "search/beam.yaml", "--config", "objective/ppo.yaml")
    epochs = ("--trainer.max_epochs", str(EPOCHS), "--trainer.check_val_every_n_epoch", "2")
    return (
        "fit",
        *overlays,
        *QUICK,
        "--model.policy.model",
        str(model),
        *epochs,
        *callbacks(moment, epoch, by),
    )


def status_of(folder: Path, *args: object) -> tuple[int, str]:
    """The exit status and the output of `tsr` in another process."""
    run = Forked(args, folder, {}, folder / "output.txt")
    return run.wait(240), run.output()


def result(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "final.pt", weights_only=True)


def rollouts(folder: Path, file: str = "rollouts.txt") -> list[int]:
    return [int(line) for line in (folder / file).read_text().split()]


def assert_equal_results(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["updates"] == theirs["updates"] == 2 * EPOCHS
    assert ours["weights"].keys() == theirs["weights"].keys()
    for name, weight in theirs["weights"].items():
        assert torch.equal(weight, ours["weights"][name]), name
    assert ours["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    for number, state in theirs["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, ours["optimizer"]["state"][number][name]), (number, name)


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

    assert_equal_results(result(tmp_path), result(uninterrupted))


@pytest.mark.slow
@pytest.mark.xdist_group("resume")
def test_a_run_that_sigterm_ends_says_how_to_go_on_and_does_so(uninterrupted: Path, tiny_model, tmp_path: Path):
    """In a validation, which Lightning would run to its end first."""
    status, output = status_of(tmp_path, *fit(tiny_model("sokoban"), "validation", EPOCHS - 1, "SIGTERM"))
    assert status == 143, output
    folder = Path("runs/sokoban/version_0")
    command = f"tsr fit --config {folder}/config.yaml --trainer.run_folder {folder} --ckpt_path last"
    sentence = (
        f"tsr: stopped by SIGTERM: saved is {folder}/checkpoints/last.ckpt (epochs trained: 3); go on with {command}"
    )
    assert output.splitlines()[-1] == sentence
    assert not list(tmp_path.rglob(".*"))

    status, output = status_of(tmp_path, *command.split()[1:], *callbacks("never"))
    assert status == 0, output
    assert [path.name for path in (tmp_path / "runs" / "sokoban").iterdir()] == ["version_0"]
    assert_equal_results(result(tmp_path), result(uninterrupted))
    assert rollouts(tmp_path, "validations.txt") == rollouts(uninterrupted, "validations.txt") == [2, 4]


@pytest.mark.slow
@pytest.mark.xdist_group("resume")
def test_ctrl_c_waits_for_a_checkpoint_that_is_written(tiny_model, tmp_path: Path):
    status, output = status_of(tmp_path, *fit(tiny_model("sokoban"), "checkpoint", 1, "SIGINT"))
    assert status == 130, output
    last = Path("runs/sokoban/version_0/checkpoints/last.ckpt")
    assert (
        f"tsr: stopped by Ctrl-C: saved is {last} (epochs trained: 2); go on with tsr fit " in output.splitlines()[-1]
    )
    assert Position.in_checkpoint(checkpoints.load(tmp_path / last)).epochs == 2
    assert not list(tmp_path.rglob(".*"))
