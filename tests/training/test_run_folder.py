"""One folder per run, whatever its loggers are, and one run per folder at a time."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from commands import QUICK, TINY, in_folder, tsr
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from processes import child_after

from tsr_lightning.errors import ConfigError
from tsr_lightning.training import checkpoints
from tsr_lightning.training.lightning_compat import Position, open_csv
from tsr_lightning.training.run_folder import FolderLock, after_fit, after_validation, next_version, task_name

CHECKPOINTS = {"filename": "{epoch}", "save_last": True, "save_on_train_epoch_end": True}
CALLBACKS = [
    {"class_path": "ModelCheckpoint", "init_args": CHECKPOINTS},
    {"class_path": "callbacks.Evaluation"},
    {"class_path": "callbacks.ConversationLog", "init_args": {"successes_only": False}},
]
RUN = (
    *("fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", TINY, "--data.held_out.instances", "1"),
    *("--data.instances", "1", "--trainer.check_val_every_n_epoch", "1"),
    *("--data.evaluations", '[{"name": "greedy", "temperature": 0, "samples": 1}]'),
)
FILES = {"config.yaml", "conversations.jsonl", "evaluation.json", "evaluation.history.json", "checkpoints"}


class Elsewhere(DummyLogger):
    """A logger without a folder for each run, as those of W&B and MLflow."""

    @property
    def save_dir(self) -> str:
        return "."


class Refusing(Callback):
    """Refuses every checkpoint, after the run was set up."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        raise ConfigError("refused")


def fit(*args: object, epochs: int = 1, callbacks: list[dict[str, Any]] = CALLBACKS) -> Any:
    return tsr(*RUN, "--trainer.max_epochs", epochs, "--trainer.callbacks", json.dumps(callbacks), *args)


def logger(path: str, **arguments: object) -> tuple[str, str]:
    return "--trainer.logger", json.dumps({"class_path": path, "init_args": arguments})


def digest(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> set[str]:
    return {re.sub(r"(tfevents).*", r"\1", path.name) for path in folder.iterdir()}


LOGGERS: dict[str, tuple[tuple[str, str], set[str]]] = {
    "none": (("--trainer.logger", "false"), set()),
    "without a folder": (logger(f"{__name__}.Elsewhere"), set()),
    "several": (
        ("--trainer.logger", f"[{__name__}.Elsewhere, TensorBoardLogger, CSVLogger]"),
        {"metrics.csv", "hparams.yaml", "events.out.tfevents"},
    ),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if kind == "none" else ()) for kind in LOGGERS]
)
def test_each_run_has_a_folder_of_its_own_under_any_logger(kind: str, empty_folder: Path):
    flags, own = LOGGERS[kind]
    fit(*flags)
    [config] = empty_folder.rglob("config.yaml")
    first = config.parent
    assert names(first) == FILES | own
    assert first.name == "version_0"
    assert first.parent == empty_folder / "runs" / "sokoban"
    before = digest(first)
    second = Path(fit(*flags, "--seed_everything", "2").trainer.log_dir)
    assert digest(first) == before
    assert second.absolute() == first.with_name("version_1")
    assert names(second) == FILES | own
    assert yaml.safe_load((second / "config.yaml").read_text())["seed_everything"] == 2
    assert len(list(empty_folder.iterdir())) == 1


def test_a_given_folder_has_the_files_of_loggers_too_and_keeps_their_figures(empty_folder: Path):
    flags = ("--trainer.run_folder", "here/run", "--trainer.logger", "[TensorBoardLogger, CSVLogger]")
    fit(*flags)
    figures = Path("here/run/metrics.csv").read_bytes()
    fit(*flags, "--ckpt_path", "last", epochs=2)
    loggers = {"metrics.csv", "metrics-1.csv", "hparams.yaml", "events.out.tfevents"}
    assert names(Path("here/run")) == FILES | loggers
    assert Path("here/run/metrics-1.csv").read_bytes() == figures
    assert names(empty_folder) == {"here"}


def test_figures_of_earlier_runs_are_kept_where_some_were_removed(tmp_path: Path):
    (tmp_path / "metrics-2.csv").write_text("the second run")  # without metrics-1.csv
    (tmp_path / "metrics.csv").write_text("the third run")
    open_csv(Mock(loggers=[CSVLogger(tmp_path.parent, name="", version=tmp_path.name)]))
    assert (tmp_path / "metrics-2.csv").read_text() == "the second run"
    assert (tmp_path / "metrics-3.csv").read_text() == "the third run"


def test_a_refused_resume_changes_nothing_and_a_beginning_overwrites_nothing(empty_folder: Path):
    flags = ("--trainer.run_folder", "run", "--trainer.logger", "false")
    fit(*flags)
    before = digest(empty_folder)
    refusing = [*CALLBACKS, {"class_path": f"{__name__}.Refusing"}]
    with pytest.raises(ConfigError, match="seed_everything is 9"):
        fit(*flags, "--ckpt_path", "last", "--seed_everything", "9")
    with pytest.raises(ConfigError, match="refused"):
        fit(*flags, "--ckpt_path", "last", "--model.optimizer.learning_rate", "0.5", callbacks=refusing)
    with pytest.raises(ConfigError, match="the run's folder is run, which has the checkpoints of an earlier run"):
        fit(*flags)
    elsewhere = ("--trainer.logger", "false", "--ckpt_path", "run/checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match="refused"):
        fit(*elsewhere, callbacks=refusing)
    assert digest(empty_folder) == before
    assert not list(empty_folder.glob("runs/*/*"))


def test_what_a_run_wrote_outlives_a_validation_and_another_beginning(empty_folder: Path):
    flags = ("--trainer.run_folder", "run", "--trainer.logger", "false")
    keeping = [*CALLBACKS, {"class_path": "callbacks.EpisodeLog"}]
    fit(*flags, callbacks=keeping)
    before = digest(empty_folder)
    checkpoint = ("--ckpt_path", "run/checkpoints/last.ckpt")
    tsr("validate", *RUN[1:], *flags, "--trainer.callbacks", json.dumps(keeping), *checkpoint)
    after = digest(empty_folder)
    assert before.items() <= after.items()
    evaluated = {"evaluation.validate.json", "evaluation.validate.history.json"}
    assert names(Path("run")) == FILES | {"episodes"} | evaluated
    assert {path.name for path in Path("run/episodes").glob("greedy*")} >= {"greedy.validate-000001.jsonl.gz"}
    shutil.rmtree("run/checkpoints")
    with pytest.raises(ConfigError, match=r"folder is run, which has episodes, evaluation\.history\.json, .*: give"):
        fit(*flags)


@pytest.mark.parametrize(("every", "times"), [(1, 1), (2, 0)])
def test_the_log_says_once_where_not_all_rollouts_could_be_kept(
    every: int, times: int, empty_folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    keeping = [{"class_path": "callbacks.EpisodeLog", "init_args": {"every_n_epochs": every, "max_mib": 1e-4}}]
    fit("--trainer.run_folder", "run", "--trainer.logger", "false", epochs=4, callbacks=keeping)
    told = [record.getMessage() for record in caplog.records if "EpisodeLog" in record.getMessage()]
    assert len(told) == times
    assert all(each.startswith("EpisodeLog removed the rollout of epoch 0 to stay within") for each in told)


def test_last_is_refused_where_it_is_damaged_and_begins_where_there_is_none(empty_folder: Path):
    flags = ("--trainer.run_folder", "run", "--trainer.logger", "false", "--ckpt_path", "last")
    fit(*flags)
    last = empty_folder / "run" / "checkpoints" / "last.ckpt"
    last.unlink()
    last.symlink_to("gone.ckpt")
    with pytest.raises(ConfigError, match=r"last.ckpt, which is a link .* go on from .*epoch=0.ckpt beside it"):
        fit(*flags)
    with pytest.raises(ConfigError, match=r"ckpt_path is last, and the run's folder has no checkpoint: give"):
        tsr("validate", *RUN[1:], "--ckpt_path", "last", "--trainer.run_folder", "empty")
    with pytest.raises(ConfigError, match=r"ckpt_path is last, and this run begins in a new folder.*run_folder, or"):
        fit("--ckpt_path", "last")


def epochs_in(path: Path) -> int:
    return Position.in_checkpoint(checkpoints.load(path)).epochs


def test_a_folder_that_was_moved_has_one_last_which_is_the_newest(empty_folder: Path):
    fit("--trainer.run_folder", "first", "--trainer.logger", "false")
    Path("first").rename("second")
    (empty_folder / "second" / "checkpoints" / ".epoch=1.ckpt.part").write_text("of a killed process")
    fit("--trainer.run_folder", "second", "--trainer.logger", "false", "--ckpt_path", "last", epochs=2)
    assert names(Path("second/checkpoints")) == {"epoch=1.ckpt", "last.ckpt"}
    assert epochs_in(Path("second/checkpoints/last.ckpt")) == 2
    lines = [json.loads(line)["epoch"] for line in Path("second/conversations.jsonl").read_text().splitlines()]
    assert sorted(set(lines)) == [0, 1]
    assert names(Path("second")) == FILES


IN_RUN = ("--trainer.run_folder", "run", "--trainer.logger", "false", "--ckpt_path", "last")


@pytest.fixture(scope="module")
def two_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs in `run`, and its checkpoints after the first in `earlier`."""
    folder = tmp_path_factory.mktemp("states")
    with in_folder(folder):
        fit(*IN_RUN)
        shutil.copytree("run/checkpoints", "earlier")  # with its times
        fit(*IN_RUN, epochs=2)
    return folder


@pytest.mark.parametrize("left", [(), ("epoch=0.ckpt",)])
def test_a_kill_between_two_files_leaves_no_third(left: tuple[str, ...], two_states: Path, empty_folder: Path):
    """A killed run had saved `epoch=1.ckpt`, and `last.ckpt` is still that of epoch 0, with or without its file."""
    shutil.copytree(two_states, ".", dirs_exist_ok=True)
    folder = Path("run/checkpoints")
    (folder / "mine.ckpt").write_text("a file of the user's")
    for name in ("last.ckpt", *left):
        shutil.copy2(Path("earlier", name), folder)
    fit(*IN_RUN, epochs=2)
    assert names(folder) == {"epoch=1.ckpt", "last.ckpt", "mine.ckpt"}
    assert epochs_in(folder / "last.ckpt") == epochs_in(folder / "epoch=1.ckpt") == 2


def test_a_run_goes_on_from_its_only_file_and_replaces_it(two_states: Path, empty_folder: Path):
    """A run was stopped after its first `epoch=0.ckpt` and before its first `last.ckpt`."""
    shutil.copytree(two_states / "run", "run", ignore=shutil.ignore_patterns("*.ckpt"))
    shutil.copy2(two_states / "earlier" / "epoch=0.ckpt", Path("run", "checkpoints"))
    fit(*IN_RUN, epochs=2)
    folder = Path("run/checkpoints")
    assert names(folder) == {"epoch=1.ckpt", "last.ckpt"}
    assert epochs_in(folder / "last.ckpt") == epochs_in(folder / "epoch=1.ckpt") == 2


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")  # Lightning's, of any dirpath
def test_checkpoints_of_another_run_are_not_overwritten(two_states: Path, empty_folder: Path):
    """Neither by a run from elsewhere nor in a `dirpath`; a run whose own files lie in several folders goes on."""
    shutil.copytree(two_states, ".", dirs_exist_ok=True)
    saved, *others = CALLBACKS
    shared = [{**saved, "init_args": {**saved["init_args"], "dirpath": "earlier"}}, *others]
    before = digest(empty_folder)
    in_new = ("--trainer.run_folder", "new", "--trainer.logger", "false")
    with pytest.raises(ConfigError, match=r"dirpath is .*earlier, which has the checkpoints of an .* --ckpt_path last"):
        fit(*in_new, callbacks=shared)
    with pytest.raises(ConfigError, match="the run's folder is run, which has the checkpoints of an earlier run"):
        fit(*IN_RUN[:-1], "earlier/last.ckpt", epochs=3)
    assert digest(empty_folder) == before
    Path("new/checkpoints").mkdir(parents=True)
    shutil.copy2("earlier/epoch=0.ckpt", "new/checkpoints/best_policy.ckpt")
    fit(*in_new, "--ckpt_path", "last", callbacks=shared, epochs=2)
    assert epochs_in(Path("earlier/last.ckpt")) == 2
    fit(*IN_RUN[:-1], "run/checkpoints/epoch=1.ckpt", epochs=3)
    assert epochs_in(Path("run/checkpoints/last.ckpt")) == 3


def test_the_last_epoch_is_saved_where_it_is_no_multiple_of_every_n_epochs(empty_folder: Path):
    """And a run that goes on from it has the weights of one that did not stop there."""
    [saved] = [callback for callback in CALLBACKS if callback["class_path"] == "ModelCheckpoint"]
    every_second = [{**saved, "init_args": {**saved["init_args"], "every_n_epochs": 2}}]
    fit("--trainer.run_folder", "run", "--trainer.logger", "false", epochs=3, callbacks=every_second)
    assert names(Path("run/checkpoints")) == {"epoch=1.ckpt", "last.ckpt"}
    assert epochs_in(Path("run/checkpoints/epoch=1.ckpt")) == 2
    assert epochs_in(Path("run/checkpoints/last.ckpt")) == 3
    fit(*IN_RUN, epochs=4, callbacks=every_second)
    fit("--trainer.run_folder", "whole", "--trainer.logger", "false", epochs=4, callbacks=every_second)
    states = [checkpoints.load(Path(name, "checkpoints", "last.ckpt"))["state_dict"] for name in ("run", "whole")]
    assert all(torch.equal(weight, states[1][name]) for name, weight in states[0].items())
    assert names(Path("run/checkpoints")) == names(Path("whole/checkpoints")) == {"epoch=3.ckpt", "last.ckpt"}


# -- the lock ---------------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_until_the_first_is_dead(tmp_path: Path):
    with child_after(lambda: FolderLock.acquire(tmp_path)) as child, pytest.raises(ConfigError) as refused:
        FolderLock.acquire(tmp_path)
    assert f"the run's folder is {tmp_path}, to which process {child} of" in str(refused.value)
    lock = FolderLock.acquire(tmp_path)  # that a killed process leaves does not count
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_outlives_its_killed_parent_does_not_hold_the_lock(tmp_path: Path):
    children: list[int] = []

    def parent() -> FolderLock:
        lock = FolderLock.acquire(tmp_path)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        (tmp_path / "child").write_text(str(child))
        return lock

    with child_after(parent):
        children.append(int((tmp_path / "child").read_text()))
    try:
        FolderLock.acquire(tmp_path).release()
    finally:
        os.kill(children[0], signal.SIGKILL)


def test_tsr_refuses_a_folder_in_use_before_it_writes(empty_folder: Path):
    with child_after(lambda: FolderLock.acquire(Path("run"))):
        before = digest(empty_folder)
        with pytest.raises(ConfigError, match=r"is writing: wait for it, or give another folder as trainer.run_f"):
            fit("--trainer.run_folder", "run", "--trainer.logger", "false")
        with pytest.raises(ConfigError, match="is writing"):
            fit(*logger("TensorBoardLogger", save_dir=".", name="", version="run"))
        assert digest(empty_folder) == before


@pytest.mark.parametrize(
    "flags",
    [
        ("--trainer.run_folder", "file/run"),
        ("--trainer.logger", "false", "--trainer.default_root_dir", "file"),
        ("--trainer.logger.init_args.save_dir", "file"),
    ],
)
def test_a_folder_that_cannot_be_made_is_one_sentence(flags: tuple[str, ...], empty_folder: Path):
    (empty_folder / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file.*, which cannot be written \(Not a directory\): give another"):
        fit(*flags)


def test_versions_and_names(tmp_path: Path):
    (tmp_path / "version_7").mkdir()
    (tmp_path / "version_x").mkdir()
    assert [next_version(tmp_path).name for _ in range(2)] == ["version_8", "version_9"]
    given = ("tsr/Sokoban-v0", "corridor:Corridor-v0", "my.module:Ns/Guess-v12", "CartPole")
    assert [task_name(env) for env in given] == ["sokoban", "corridor", "guess", "cartpole"]


def test_a_fit_says_where_it_is_and_what_comes_next(tmp_path: Path):
    folder, last = tmp_path / "a run", tmp_path / "a run" / "checkpoints" / "last.ckpt"
    folder.mkdir()
    assert after_fit(folder, None, None) == f"the run is in {folder}"
    (folder / "config.yaml").touch()
    run = f"--config '{folder}/config.yaml' --ckpt_path '{last}'"
    assert after_fit(folder, last, tmp_path).splitlines() == [
        f"the run is in {folder}, its policy in {last}",
        f"  tensorboard --logdir {tmp_path}",
        f"  tsr validate {run}",
        f"  tsr export {run} --output my_policy",
    ]


def test_a_validation_says_where_its_figures_are(tmp_path: Path):
    assert after_validation(tmp_path) is None
    (tmp_path / "evaluation.validate.json").touch()
    assert after_validation(tmp_path) == f"the figures are in {tmp_path}/evaluation.validate.json"
