"""The `tsr` command: help, configuration files, runs and their checkpoints."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import QUICK, ROOT, TINY, in_folder, tsr, tsr_process
from lightning.pytorch import Callback

from tsr_lightning.cli.command import main
from tsr_lightning.envs.base import Branchable
from tsr_lightning.errors import ConfigError
from tsr_lightning.training import checkpoints

KEEPING = '{"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch:03d}", "every_n_epochs": 1, '
KEEPING += '"save_last": true, "save_on_train_epoch_end": true}}'
MEASURED = '{"class_path": "callbacks.Evaluation"}'
PPO = ("--config", "sokoban.yaml", "--config", "objective/ppo.yaml", *QUICK)


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The output of a command that only prints."""
    with pytest.raises(SystemExit) as ended:
        tsr(*args)
    assert ended.value.code == 0
    return capsys.readouterr().out


def weights(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)["state_dict"]


class TestHelp:
    """Help texts name this project's subcommands and explain every key."""

    def test_describes_the_subcommands_of_this_project(self, capsys, empty_folder):
        overview = " ".join(printed(capsys, "--help").split())
        for subcommand, said in (
            ("fit", "Train a policy on trajectories built by search, and evaluate it on held-out instances"),
            ("validate", "Evaluate a policy on held-out instances, by the protocols of data.evaluations"),
            ("rollout", "Play episodes of a policy on held-out instances"),
            ("play", "Play training instances yourself"),
            ("export", "Write a trained policy as files that plain transformers and peft"),
        ):
            assert f"{subcommand} {said}" in overview
            explained = " ".join(printed(capsys, subcommand, "--help").split())
            assert said in explained
            assert "full optimization routine" not in explained
            assert "evaluation epoch over" not in explained

    @pytest.mark.parametrize(
        ("subcommand", "flags"),
        [
            ("study", ("--output", "--from", "--jobs", "--only", "--keep-changed")),
            ("report", ("--baseline", "--threshold", "--pack")),
            ("view", ("--output",)),
            ("replay", ("--model",)),
            ("episodes", ("--to", "--output", "--successes_only")),
            ("check-env", ("--env_kwargs", "--seeds", "--response", "--noisy", "--exact")),
            ("estimate", ("--machine", "--response_tokens", "--turns", "--characters_per_token")),
        ],
    )
    def test_of_the_plain_subcommands_lists_their_flags(self, subcommand: str, flags, capsys, empty_folder):
        with pytest.raises(SystemExit) as ended:
            main([subcommand, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert f"usage: tsr {subcommand}" in said
        assert all(flag in said for flag in flags)

    def test_lists_no_other_subcommands(self, capsys, empty_folder):
        said = printed(capsys, "--help")
        assert (
            re.search(r"\{(.*)\}", said)[1]
            == "fit,validate,rollout,play,export,study,report,estimate,view,replay,episodes,check-env,probe,import-gguf"
        )
        assert "trajectories built" in said

    @pytest.mark.parametrize("subcommand", ["fit", "validate", "rollout", "play", "export"])
    def test_explains_every_argument(self, subcommand: str, capsys, empty_folder):
        said = printed(capsys, subcommand, "--help")
        assert f"tsr {subcommand} --config" in said  # an example
        for key in ("--model.objective", "--data.plan", "--data.env ENV", "--ckpt_path", "--trainer.max_epochs"):
            assert key in said
        own = re.findall(r"^  --((?:model|data)\.[\w.]+) (?!CONFIG)[A-Z\[{]\S*((?:\n {10}.*|.)*)", said, re.MULTILINE)
        assert len(own) > 25
        unexplained = [key for key, text in own if not re.match(r"\s+(?!\(|Path to)\S", text)]
        assert unexplained == []

    def test_explains_the_arguments_of_a_plan(self, capsys, empty_folder):
        said = printed(capsys, "fit", "--data.plan.help", "Uniform")
        assert "trajectories per instance" in said

    def test_print_config_can_be_run_again(self, capsys, empty_folder: Path):
        first = printed(capsys, "fit", "--config", "quickstart.yaml", "--data.instances", "7", "--print_config")
        (empty_folder / "mine.yaml").write_text(first)
        assert printed(capsys, "fit", "--config", "mine.yaml", "--print_config") == first
        resolved = yaml.safe_load(first)
        assert list(resolved)[:4] == ["seed_everything", "trainer", "model", "data"]
        assert resolved["data"]["instances"] == 7
        assert "seed" not in resolved["data"]  # linked


@pytest.mark.parametrize("name", ["quickstart.yaml", "configs/quickstart.yaml"])
@pytest.mark.parametrize("flag", ["--config {}", "--config={}", "-c {}"])
def test_a_shipped_file_is_found_from_an_empty_folder(name: str, flag: str, capsys, empty_folder):
    assert "name: quickstart" in printed(capsys, "fit", *flag.format(name).split(), "--print_config")


def environment(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[str, dict[str, Any] | None]:
    """The environment of a command, after all overlays: its name and its arguments."""
    data = yaml.safe_load(printed(capsys, "fit", "--config", "sokoban.yaml", *args, "--print_config"))["data"]
    return data["env"], data["env_kwargs"]


class TestArgumentsOfTheEnvironment:
    """They merge key by key, and are dropped where another environment is named."""

    @pytest.mark.parametrize(
        "overlay",
        [
            "data: {env_kwargs: {min_solution: 6}}",
            "data: {env: tsr/Sokoban-v0, env_kwargs: {min_solution: 6}}",
            "data:\n  env_kwargs:\n    min_solution: 6\n",
        ],
    )
    def test_in_a_file_merge(self, overlay: str, capsys, empty_folder: Path):
        name, before = environment(capsys)
        (empty_folder / "mine.yaml").write_text(overlay)
        assert before is not None
        assert before["prompt_style"] == "bare"
        assert environment(capsys, "--config", "mine.yaml") == (name, {**before, "min_solution": 6})

    @pytest.mark.parametrize(
        "flags",
        [
            ("--data.env_kwargs.min_solution", "6"),
            ("--data.env_kwargs.min_solution=6",),
            ("--data.env_kwargs", '{"min_solution": 6}'),
            ("--data.env_kwargs={min_solution: 6}",),
            ("--data.env_kwargs.min_solution", "5", "--data.env_kwargs", "{min_solution: 6}"),
            ("--data.env_kwargs", "{min_solution: 5}", "--data.env_kwargs.min_solution", "6"),
            ("--config", '{"data": {"env_kwargs": {"min_solution": 6}}}'),
            ("--data", '{"env_kwargs": {"min_solution": 6}}'),
        ],
        ids=" ".join,
    )
    def test_in_flags_merge(self, flags: tuple[str, ...], capsys, empty_folder: Path):
        name, before = environment(capsys)
        assert environment(capsys, *flags) == (name, {**(before or {}), "min_solution": 6})

    @pytest.mark.parametrize(
        "flags",
        [
            ("--data.env_kwargs.difficulty.options", "3", "--data.env_kwargs.difficulty.price_step=5"),
            (
                "--config",
                "data: {env_kwargs: {difficulty: {options: 3}}}",
                "--data.env_kwargs.difficulty.price_step",
                "5",
            ),
            ("--data.env_kwargs.difficulty.price_step=5", "--data.env_kwargs", "{difficulty: {options: 3}}"),
        ],
        ids=" ".join,
    )
    def test_that_are_mappings_merge_too(self, flags: tuple[str, ...], capsys, empty_folder: Path):
        name, before = environment(capsys, "--config", "webshop.yaml")
        assert before is not None
        difficulty = {**before["difficulty"], "options": 3, "price_step": 5}
        assert environment(capsys, "--config", "webshop.yaml", *flags) == (name, {**before, "difficulty": difficulty})

    @pytest.mark.parametrize(
        ("value", "read"), [("2e-1", 0.2), ("null", None), ("a: b: c", "a: b: c"), ("[1, x]", [1, "x"])]
    )
    def test_within_a_mapping_are_read_as_others_are(self, value: str, read: Any, capsys, empty_folder: Path):
        (empty_folder / "mine.yaml").write_text("data: {env: corridor:Corridor-v0, env_kwargs: {}}")
        for key, expected in (("some", read), ("some.deep.key", {"deep": {"key": read}})):
            _, found = environment(capsys, "--config", "mine.yaml", f"--data.env_kwargs.{key}={value}")
            assert found == {"some": expected}

    @pytest.mark.parametrize("flags", [(), ("--data.instances", "3")], ids=" ".join)
    def test_of_another_environment_replace_them(self, flags: tuple[str, ...], capsys, empty_folder: Path):
        (empty_folder / "mine.yaml").write_text("data: {env: corridor:Corridor-v0, env_kwargs: {slip: 0.2}}")
        found = environment(capsys, "--config", "mine.yaml", *flags)
        assert found == ("corridor:Corridor-v0", {"slip": 0.2})

    @pytest.mark.parametrize(
        ("flags", "left"),
        [
            ((), None),
            (("--data.env_kwargs.slip", "0.2"), {"slip": 0.2}),
            (("--data.env_kwargs", "{slip: 2e-1}"), {"slip": 0.2}),
            (("--data.env_kwargs", "null"), None),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("named_first", [True, False])
    def test_after_another_environment_is_named(
        self, named_first: bool, flags: tuple[str, ...], left, capsys, empty_folder: Path
    ):
        named = ("--data.env", "corridor:Corridor-v0")
        found = environment(capsys, *(named + flags if named_first else flags + named))
        assert found == ("corridor:Corridor-v0", left)

    def test_follow_the_order_of_the_files(self, capsys, empty_folder: Path):
        (empty_folder / "mine.yaml").write_text("data: {env: corridor:Corridor-v0}")
        found = environment(capsys, "--data.env_kwargs.boxes", "2", "--config", "mine.yaml", "--data.instances", "3")
        assert found == ("corridor:Corridor-v0", None)
        back = environment(capsys, "--config", "mine.yaml", "--config", "sokoban.yaml")
        assert back == environment(capsys)

    def test_null_removes_all_of_them(self, capsys, empty_folder: Path):
        assert environment(capsys, "--data.env_kwargs", "null")[1] is None

    def test_are_logged_and_saved(self, tiny_model, empty_folder: Path, caplog: pytest.LogCaptureFixture):
        caplog.set_level("INFO")
        (empty_folder / "mine.yaml").write_text("data: {env_kwargs: {min_solution: 6}}")
        tsr("fit", *PPO, "--config", "mine.yaml", "--model.policy.model", tiny_model("sokoban"))
        assert re.search(r"environment: tsr/Sokoban-v0\(prompt_style='bare', .*min_solution=6, ", caplog.text)
        [written] = empty_folder.glob("runs/sokoban/*/config.yaml")
        kwargs = yaml.safe_load(written.read_text())["data"]["env_kwargs"]
        assert (kwargs["prompt_style"], kwargs["min_solution"]) == ("bare", 6)


def test_a_run_leaves_its_configuration_beside_its_checkpoints(tiny_model, empty_folder: Path):
    callbacks = ("--trainer.callbacks", f"[{KEEPING}]")
    tsr("fit", *PPO, "--model.policy.model", tiny_model("sokoban"), *callbacks, "--data.instances", "3")
    [run] = empty_folder.glob("runs/sokoban/*")
    assert {path.name for path in run.glob("checkpoints/*")} == {"epoch=001.ckpt", "last.ckpt"}
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["instances"] == 3
    assert [path.name for path in empty_folder.iterdir()] == ["runs"]
    export = ("export", "--config", run / "config.yaml", "--output", "out", "--ckpt_path")
    tsr(*export, run / "checkpoints" / "last.ckpt")
    assert (empty_folder / "out" / "model.safetensors").is_file()
    tsr(*export, run / "checkpoints" / "epoch=001.ckpt")  # the same policy in another file
    [code] = re.findall(r"```python\n(.*?)```", (empty_folder / "out" / "README.md").read_text(), re.DOTALL)
    exec(code, {})  # the model card says how to use it


@pytest.mark.slow
def test_the_policy_of_another_task_is_told(empty_folder: Path, caplog: pytest.LogCaptureFixture):
    flags = ("--data.held_out.instances", 2, "--data.evaluations", "[{samples: 1}]", "--trainer.accelerator", "cpu")
    with caplog.at_level("INFO"):
        tsr("validate", "--config", "frozen_lake.yaml", *flags)
        assert "another task" not in caplog.text
        tsr("validate", "--config", "frozen_lake.yaml", "--config", "model/embedded.yaml", *flags)
    assert "embedded/sokoban, which was trained on another task than tsr/FrozenLake-v0" in caplog.text


def test_an_export_says_what_it_wrote_and_is_not_written_over(tiny_model, empty_folder: Path, caplog):
    kept = ("--trainer.callbacks", f"[{KEEPING}, {MEASURED}]", "--trainer.check_val_every_n_epoch", "1")
    tsr("fit", *PPO, "--model.policy.model", tiny_model("sokoban"), *kept, "--trainer.max_epochs", "1")
    [last] = empty_folder.rglob("last.ckpt")
    export = ("export", *PPO, "--model.policy.model", tiny_model("sokoban"), "--output", "out", "--ckpt_path")
    with caplog.at_level("INFO"):
        tsr(*export, last)
    said = (
        rf"exported a whole model to out \(8 files, 0\.\d MB\): the policy of {last}, trained for 1 epochs; out/README"
    )
    assert re.match(said, caplog.messages[-1])
    assert re.search(
        r"\| sampled \| 1 epochs \| 0\.\d{3} \[0\.\d{3}, \d\.\d{3}\] \| 4 \|", Path("out/README.md").read_text()
    )
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    contents = checkpoints.load(last)
    next(iter(contents["state_dict"].values())).add_(1)
    checkpoints.write(contents, Path("other.ckpt"))
    with pytest.raises(
        ConfigError, match=rf"output is out, which holds the policy of {last}: give another folder, or del"
    ):
        tsr(*export, "other.ckpt")
    with pytest.raises(ConfigError, match="output is runs, which holds files of another kind: give the path of a new"):
        tsr(*(part if part != "out" else "runs" for part in export), last)
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
    assert not list(empty_folder.glob(".*"))


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")  # lightning's, of every next version_
def test_validate_gives_the_figures_that_fit_gave(tiny_model, empty_folder: Path):
    common = (*PPO, "--model.policy.model", tiny_model("sokoban"), "--data.held_out.instances", "8")
    args = ("--trainer.callbacks", f"[{KEEPING}, {MEASURED}]", "--trainer.check_val_every_n_epoch", "1")
    during = tsr("fit", *common, *args, "--model.optimizer.learning_rate", "0.003").trainer.callback_metrics
    [checkpoint] = empty_folder.rglob("last.ckpt")
    after = tsr("validate", *common, *args, "--ckpt_path", checkpoint).trainer.callback_metrics
    start = tsr("validate", *common, *args).trainer.callback_metrics
    figures = [name for name in after if name.startswith("val/") and not name.endswith("seconds")]
    assert len(figures) > 10
    assert {name: float(during[name]) for name in figures} == {name: float(after[name]) for name in figures}
    assert {name: float(start[name]) for name in figures} != {name: float(after[name]) for name in figures}


class Recording(Callback):
    """Counts the micro-batches of every optimizer step."""

    def __init__(self) -> None:
        self.micro_batches: list[int] = [0]

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.micro_batches[-1] += 1

    def on_before_zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self.micro_batches.append(0)


class TestMicroBatches:
    """A step has the same gradient in one micro-batch or in several."""

    @staticmethod
    def trained(model: Path, *args: str) -> tuple[dict[str, torch.Tensor], dict[str, float], int]:
        """The weights after two steps, the figures of the last, and the largest number of micro-batches of a step."""
        recording = ("--trainer.callbacks", f'[{{"class_path": "{__name__}.Recording"}}]')
        two = ("--trainer.max_epochs", "1", "--data.updates.minibatches", "2")
        cli = tsr("fit", *PPO, "--model.policy.model", str(model), *recording, *two, *args)
        assert cli.trainer.global_step == 2
        counts = next(c for c in cli.trainer.callbacks if isinstance(c, Recording)).micro_batches
        figures = {name: float(figure) for name, figure in cli.trainer.callback_metrics.items()}
        return cli.model.state_dict(), figures, max(counts)

    @pytest.mark.parametrize(
        "args",
        [("--trainer.accumulate_grad_batches", "3"), ("--data.updates.micro_batch_tokens", "1000")],
        ids=" ".join,
    )
    def test_do_not_change_weights_or_figures(self, args: tuple[str, str], tiny_model, empty_folder):
        weights, figures, one = self.trained(tiny_model("sokoban"))
        parts, their_figures, several = self.trained(tiny_model("sokoban"), *args)
        assert one == 1
        assert several >= 3
        # gradient norms among them: AdamW's steps hardly depend on a gradient's scale
        assert {"train/grad_norm_policy", "train/grad_norm_critic"} <= figures.keys()
        assert their_figures == pytest.approx(figures, rel=1e-4, abs=1e-6)
        for name, weight in weights.items():  # a step is about 1e-4
            torch.testing.assert_close(parts[name], weight, atol=2e-6, rtol=0, msg=name)


@pytest.mark.slow
def test_another_process_gives_the_same_numbers(tiny_model, tmp_path: Path):
    """With another salt of Python's hashes, and without what this process ran before."""
    keeping = ("--trainer.callbacks", f"[{KEEPING}]", "--config", "search/beam.yaml", "--config", "credit/imitate.yaml")
    args = ("fit", *PPO, "--model.policy.model", tiny_model("sokoban"), *keeping)
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    with in_folder(here):
        tsr(*args)
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = tsr_process(*args, cwd=there, PYTHONHASHSEED=salt)
    assert done.returncode == 0, done.stderr
    found, expected = (weights(last) for folder in (here, there) for last in folder.rglob("last.ckpt"))
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.slow
def test_a_users_environment_trains_outside_the_repository(tmp_path: Path):
    package = tmp_path / "mine"
    package.mkdir()
    shutil.copy(ROOT / "tests" / "corridor.py", package / "hall.py")
    (tmp_path / "mine.yaml").write_text(
        "data:\n  env: mine.hall:Corridor-v0\n  env_kwargs: {slip: 0.2}\n  held_out: {instances: 1}\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    keeping = ("--trainer.callbacks", f"[{KEEPING}, {MEASURED}]", "--trainer.check_val_every_n_epoch", "1")
    small = (*QUICK, "--data.held_out.instances", "1", "--model.policy.model", TINY)
    overlays = ("--config", "sokoban.yaml", "--config", "objective/ppo.yaml", "--config", "mine.yaml")
    done = subprocess.run(
        [Path(sys.executable).with_name("tsr"), "fit", *overlays, *small, *keeping],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [last] = tmp_path.rglob("last.ckpt")
    assert torch.load(last, weights_only=True)["global_step"] == 4
    [measured] = tmp_path.rglob("evaluation.json")
    assert json.loads(measured.read_text())["evaluations"]["sampled"]["after"]["figures"]["turns"] > 0


def test_the_users_environment_passes_the_checker():
    from corridor import Corridor

    from tsr_lightning.envs.checker import check_branchable

    assert isinstance(Corridor(), Branchable)
    check_branchable(Corridor)


def test_a_folder_without_a_chat_template_is_told(
    tiny_model: Callable[[str], Path], empty_folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    shutil.copytree(tiny_model("sokoban"), "bare")
    flags = ("validate", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", "bare")
    tsr(*flags)
    assert "no chat template" not in caplog.text
    Path("bare/chat_template.jinja").unlink()
    tsr(*flags)
    assert "bare has no chat template, so its prompts are written with User: and Assistant:" in caplog.text
