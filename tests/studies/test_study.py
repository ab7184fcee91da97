"""`tsr study` on a small real grid: stopped, resumed and refused.

`test_shared_folder.py` has what needs no training.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from commands import ROOT, in_folder, tsr
from processes import Forked
from rich.console import Console

from tsr_lightning.cli.command import main
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.studies.arms import CheckedArm, check_arms, refuse_to_lose
from tsr_lightning.studies.folder import StudyFolder, write_json
from tsr_lightning.studies.grid import Run, parse_grid
from tsr_lightning.studies.run_processes import AlreadyRunning, Processes, locked
from tsr_lightning.studies.study_progress import Progress
from tsr_lightning.studies.worker import Worker, fit_command

SECONDS = 400
EVALUATION = {"class_path": "callbacks.Evaluation"}
CHECKPOINT = {
    "class_path": "ModelCheckpoint",
    "init_args": {"filename": "{epoch:03d}", "every_n_epochs": 1, "save_last": True, "save_on_train_epoch_end": True},
}
AWAY = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "away"}}
GRID: dict[str, Any] = {
    "configs": ["sokoban.yaml", "tiny.yaml"],
    "overrides": {
        "trainer.max_epochs": 2,
        "data.instances": 2,
        "data.held_out.instances": 4,
    },
    "arms": {
        "grpo": None,
        "ppo": {"configs": ["objective/ppo.yaml"], "seeds": [2]},
    },
    "seeds": [1],
    "jobs": 2,
    "baseline": "grpo",
}


def trainer(*callbacks: dict[str, Any]) -> str:
    every_epoch = {"accelerator": "cpu", "check_val_every_n_epoch": 1, "callbacks": list(callbacks)}
    return yaml.safe_dump({"trainer": every_epoch})


def write_grid(folder: Path, **changes: Any) -> None:
    (folder / "tiny.yaml").write_text(trainer(EVALUATION, CHECKPOINT))
    (folder / "mine.yaml").write_text(yaml.safe_dump({**GRID, **changes}))


def start(folder: Path, log: str, *args: str) -> Forked:
    environment = {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return Forked(["study", "mine.yaml", "--output", "out", *args], folder, environment, folder / log)


def figures(result: Path) -> list[dict[str, Any]]:
    """All that an evaluation measured, without the times."""
    return [
        {
            "figures": {
                protocol: {name: value for name, value in each.items() if name != "seconds"}
                for protocol, each in evaluation["figures"].items()
            },
            "successes": evaluation["successes"],
            "costs": {name: value for name, value in evaluation["costs"].items() if not name.endswith("seconds")},
        }
        for evaluation in json.loads(result.read_text())["evaluations"]
    ]


class Ran(NamedTuple):
    folder: Path
    killed: tuple[int, str]  # exit status and output
    resumed: tuple[int, str]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("study")  # of parallel workers one runs it
class TestAStudy:
    @pytest.fixture(scope="class")
    @staticmethod
    def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
        """Stopped as soon as a run has a checkpoint, then run to its end."""
        folder = tmp_path_factory.mktemp("study")
        write_grid(folder)
        first = start(folder, "first.txt", "--only", "grpo/seed1")
        checkpoint = folder / "out" / "runs" / "grpo" / "seed1" / "checkpoints" / "last.ckpt"
        while first.is_running and not checkpoint.exists():
            time.sleep(0.05)
        first.terminate()
        killed = first.wait(SECONDS), first.output()
        second = start(folder, "second.txt")
        return Ran(folder, killed, (second.wait(SECONDS), second.output()))

    def test_that_is_stopped_says_so_and_leaves_no_result(self, ran: Ran):
        status, output = ran.killed
        assert status == 143
        assert "mine: 1 runs, 0 finished, 1 to do, 2 side by side" in output
        sentence = (
            "tsr study: stopped by SIGTERM: its runs were ended, and the same command goes on from their checkpoints"
        )
        assert output.splitlines()[-1] == sentence

    def test_goes_on_from_the_last_checkpoint_and_runs_the_others(self, ran: Ran):
        status, output = ran.resumed
        assert status == 0
        assert "grpo seed 1 goes on from its last checkpoint" in output
        assert "ppo seed 2 begins" in output
        assert "2 finished" in output.splitlines()[-1]

    def test_has_the_figures_of_a_plain_fit(self, ran: Ran, tmp_path: Path):
        """The run that was killed and resumed too, bit for bit."""
        results = StudyFolder(ran.folder / "out")
        for run in (Run("grpo", 1), Run("ppo", 2)):
            overlays = ["--config", "objective/ppo.yaml"] if run.arm == "ppo" else []
            with in_folder(ran.folder):
                tsr(
                    *("fit", "--config", "sokoban.yaml", "--config", "tiny.yaml", *overlays),
                    *("--trainer.max_epochs", 2, "--data.instances", 2, "--data.held_out.instances", 4),
                    *("--seed_everything", run.seed, "--trainer.logger.init_args.save_dir", tmp_path / run.arm),
                )
            [written] = (tmp_path / run.arm).rglob("evaluation.history.json")
            assert figures(results.result(run)) == figures(written)
            assert [one["costs"]["epochs"] for one in figures(written)] == [0, 1, 2]

    def test_that_is_finished_repeats_nothing_even_without_its_runs(self, ran: Ran, monkeypatch, capsys):
        with in_folder(ran.folder):
            (ran.folder / "out" / "runs").rename(ran.folder / "moved")
            with pytest.raises(SystemExit) as ended:
                main(["study", "mine.yaml", "--output", "out", "--only", "g*", "--only", "ppo/seed2"])
            assert not (ran.folder / "out" / "runs").exists()
            (ran.folder / "moved").rename(ran.folder / "out" / "runs")
        assert ended.value.code == 0
        assert "2 runs, 2 finished, 0 to do" in capsys.readouterr().out

    def test_refuses_results_of_other_settings_unless_told_to_keep_them(self, ran: Ran, capsys):
        write_grid(ran.folder, overrides={**GRID["overrides"], "data.instances": 3})
        with in_folder(ran.folder):
            with pytest.raises(SystemExit) as ended:
                main(["study", "mine.yaml", "--output", "out", "--only", "grpo"])
            assert ended.value.code == 2
            assert (
                "tsr: error: grpo seed 1 was run with other settings (data.instances was 2 and is 3): give the arm "
                "another name, delete out/results/grpo/seed1.json to run it again, or keep it with --keep-changed"
            ) in capsys.readouterr().err
            with pytest.raises(SystemExit) as ended:
                main(["study", "mine.yaml", "--output", "out", "--only", "grpo", "--keep-changed"])
            assert ended.value.code == 0
        write_grid(ran.folder)

    def test_refuses_to_lose_a_checkpoint_of_other_settings(self, ran: Ran, capsys):
        """As after a run was stopped and its arm changed: its result is away, its checkpoint is not."""
        result = ran.folder / "out" / "results" / "grpo" / "seed1.json"
        checkpoint = ran.folder / "out" / "runs" / "grpo" / "seed1" / "checkpoints" / "last.ckpt"
        result.rename(ran.folder / "away.json")
        write_grid(ran.folder, overrides={**GRID["overrides"], "data.instances": 3})
        with in_folder(ran.folder), pytest.raises(SystemExit) as ended:
            main(["study", "mine.yaml", "--output", "out", "--only", "grpo/seed1"])
        assert ended.value.code == 2
        sentence = "grpo seed 1 was begun with other settings (data.instances was 2 and is 3) and has a checkpoint"
        assert f"tsr: error: {sentence}" in capsys.readouterr().err
        assert checkpoint.is_file()
        (ran.folder / "away.json").rename(result)
        write_grid(ran.folder)

    def test_leaves_small_results(self, ran: Ran):
        for result in (ran.folder / "out" / "results").rglob("*.json"):
            assert result.stat().st_size < 20_000


REFUSED = [
    ({"arms": {"mine": {"configs": ["absent.yaml"]}}}, "arm mine: --config is absent.yaml, which is no file"),
    ({"arms": {"mine": {"overrides": {"data.instance": 2}}}}, "arm mine: --data.instance is no key that can be set"),
    (
        {"arms": {"mine": {"overrides": {"data.held_out.instances": 0}}}},
        "arm mine: data.held_out.instances is 0: hold out at least 1",
    ),
    (
        {"arms": {"mine": {"overrides": {"trainer.callbacks": None}}}},
        "arm mine: trainer.callbacks has no callbacks.Evaluation",
    ),
    ({"arms": {"mine": {"overrides": {"data.evaluations": []}}}}, "arm mine: data.evaluations is []: give at least"),
    (
        {"thresholds": {"smapled": 0.5}},
        "thresholds.smapled is [0.5]: no arm is evaluated by a protocol of this name; use sampled or greedy",
    ),
    (
        {"overrides": {"data.updates.micro_batch_tokens": None, "data.engine.init_args.kv_cache_mib": None}},
        "arm grpo: data.updates.micro_batch_tokens and data.engine.init_args.kv_cache_mib are null, so each of 2 runs",
    ),
    (
        {"arms": {"mine": {"overrides": {"trainer": {"run_folder": "elsewhere"}}}}},
        "arm mine: trainer.run_folder is 'elsewhere': --output of the study says where its runs are written",
    ),
    (
        {"arms": {"mine": {"overrides": {"trainer.callbacks": [EVALUATION, AWAY]}}}},
        "arm mine: ModelCheckpoint.dirpath is 'away': a run's checkpoints lie in its own folder",
    ),
    ({"jobs": "many"}, "mine.yaml: jobs is 'many': give a whole number of 1 or more"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_bad_grid_is_refused_before_anything_runs(changes: dict[str, Any], sentence: str, capsys, empty_folder: Path):
    write_grid(empty_folder, **{"baseline": None, **changes})
    with pytest.raises(SystemExit) as ended:
        main(["study", "mine.yaml"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tsr: error: {sentence}")
    assert said.count("\n") == 1
    assert not (empty_folder / "runs").exists()


def test_a_setting_that_no_file_can_hold_is_refused(empty_folder: Path, capsys):
    """Written to a file of the study, it would end all runs with a traceback."""
    write_grid(empty_folder, arms={"mine": {"configs": ["endless.yaml"]}}, baseline=None)
    (empty_folder / "endless.yaml").write_text("trainer: {gradient_clip_val: .inf}\n")
    with pytest.raises(SystemExit) as ended:
        main(["study", "mine.yaml"])
    assert ended.value.code == 2
    sentence = "arm mine: trainer.gradient_clip_val is inf, which JSON cannot hold: leave it out, or give a number"
    assert capsys.readouterr().err == f"tsr: error: {sentence}\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["absent.yaml"], "the grid absent.yaml cannot be read: give the path of a YAML file"),
        (["mine.yaml", "--jobs", "0"], "0 is no whole number of 1 or more"),
        (
            ["mine.yaml", "--only", "grpo", "--only", "x*"],
            "--only is 'x*': no arm has that name: give a pattern of grpo",
        ),
        ([], "the following arguments are required: grid"),
    ],
)
def test_bad_flags_are_refused(args: list[str], sentence: str, capsys, empty_folder: Path):
    write_grid(empty_folder, arms={"grpo": None})
    with pytest.raises(SystemExit) as ended:
        main(["study", *args])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_only_the_chosen_arms_are_checked():
    grid = parse_grid({**GRID, "thresholds": {"greedy": [0.5]}}, "mine")

    def resolve(flags: list[str]) -> dict[str, Any]:
        require("--config=objective/ppo.yaml" not in flags, "model.objective", "PPO", "this arm is wrong on purpose")
        return {"trainer": {"callbacks": [EVALUATION]}, "data": {"evaluations": [{"name": "sampled"}]}}

    assert set(check_arms(grid, resolve, ["grpo"])) == {"grpo"}  # and the threshold may be that of another
    with pytest.raises(ConfigError, match=r"arm ppo: model\.objective is 'PPO'"):
        check_arms(grid, resolve)
    with pytest.raises(ConfigError, match=r"thresholds\.greedy"):
        check_arms(parse_grid({**GRID, "arms": {"grpo": None}, "thresholds": {"greedy": [0.5]}}, "mine"), resolve)


ONE_BATCH = {"trainer.limit_val_batches": 1}


def stopped(root: Path, settings: dict[str, Any]) -> tuple[Worker, CheckedArm, Path]:
    """A run that was stopped behind a checkpoint without the name of a last one, as of a callback that keeps the
    best."""
    [arm, *_] = parse_grid(GRID, "mine").arms
    folder, run = StudyFolder(root), Run("grpo", 1)
    write_json(folder.begun(run), settings)
    checkpoint = folder.checkpoints(run) / "epoch=050.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    progress = Progress([run], {}, 1, Console(quiet=True))
    checked = CheckedArm(arm, ONE_BATCH, "evaluation", ("sampled",))
    return Worker({"grpo": checked}, folder, 1, 1, None, Processes(), progress), checked, checkpoint


def test_a_stopped_run_goes_on_from_the_newest_checkpoint_that_it_has(tmp_path: Path):
    worker, checked, checkpoint = stopped(tmp_path, ONE_BATCH)
    refuse_to_lose([Run("grpo", 1)], {"grpo": checked}, worker.folder)
    assert worker._checkpoint(Run("grpo", 1), checked) == checkpoint


def test_one_batch_is_not_all_of_them(tmp_path: Path):
    """1 and 1.0 are equal in Python alone."""
    worker, checked, checkpoint = stopped(tmp_path, {"trainer.limit_val_batches": 1.0})
    with pytest.raises(ConfigError, match=r"limit_val_batches was 1\.0 and is 1\) and has a checkpoint"):
        refuse_to_lose([Run("grpo", 1)], {"grpo": checked}, worker.folder)
    assert checkpoint.is_file()


def test_a_run_that_another_process_works_on_is_left_alone(tmp_path: Path):
    lock = tmp_path / "lock"
    with locked(lock), pytest.raises(AlreadyRunning), locked(lock):
        raise AssertionError
    with locked(lock):
        pass  # free again


def test_the_command_of_a_run_names_its_folder_seed_and_checkpoint(tmp_path: Path):
    [arm, *_] = parse_grid(GRID, "mine").arms
    command = fit_command(Run("grpo", 7), arm, StudyFolder(tmp_path), tmp_path / "last.ckpt")
    assert command[1:6] == ["-m", "tsr_lightning", "fit", "--config=sokoban.yaml", "--config=tiny.yaml"]
    assert "--seed_everything=7" in command
    assert f"--ckpt_path={tmp_path / 'last.ckpt'}" in command
    [logger] = [part for part in command if part.startswith("--trainer.logger=")]
    assert json.loads(logger.partition("=")[2])["init_args"]["version"] == "seed7"


def test_the_shipped_grids_are_found_by_name(capsys, empty_folder: Path):
    assert (ROOT / "configs" / "studies" / "sokoban_search.yaml").is_file()
    with pytest.raises(SystemExit) as ended:
        main(["study", "studies/sokoban_search.yaml", "--only", "none"])
    assert ended.value.code == 2
    assert "give a pattern of longest-grpo, longest-ppo" in capsys.readouterr().err
