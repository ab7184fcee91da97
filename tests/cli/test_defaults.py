"""The command's own defaults, the comments of `--print_config`, and how later files and flags change them."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import QUICK, tsr

from tsr_lightning.cli.app import ParsingCLI, resolved_settings
from tsr_lightning.cli.defaults import CALLBACKS, EVALUATIONS
from tsr_lightning.errors import ConfigError

TASK = {
    "model": {"policy": {"model": "embedded/sokoban"}, "objective": {"class_path": "GRPO"}},
    "data": {"env": "tsr/Sokoban-v0", "env_kwargs": {"prompt_style": "bare"}},
}
MINE = ("--config", yaml.safe_dump(TASK))


def settings(*flags: str) -> dict[str, Any]:
    return resolved_settings([*MINE, *flags], ParsingCLI)


def callback(resolved: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [one for one in resolved["trainer"]["callbacks"] if one["class_path"].endswith(f".{name}")]
    return dict(found["init_args"])


def test_a_task_without_a_trainer_gets_the_command_s(empty_folder):
    resolved = settings()
    assert [one["class_path"] for one in resolved["trainer"]["callbacks"]] == [one["class_path"] for one in CALLBACKS]
    assert callback(resolved, "CollapseGuard")["window"] == 5  # the constructor's own default
    assert resolved["trainer"]["gradient_clip_val"] == 1.0
    assert resolved["data"]["evaluations"] == [dict(protocol) for protocol in EVALUATIONS]


def test_runs_are_named_after_their_task(empty_folder):
    assert settings()["trainer"]["logger"]["init_args"]["name"] == "sokoban"
    named = settings("--trainer.logger.init_args.name", "mine")
    assert named["trainer"]["logger"]["init_args"] == {**settings()["trainer"]["logger"]["init_args"], "name": "mine"}


def test_what_a_file_extends_is_as_if_given_before_it(empty_folder):
    Path("mine.yaml").write_text("extends: [sokoban.yaml, search/sample.yaml]\ndata: {env_kwargs: {boxes: 2}}")
    given = [
        "--config",
        "sokoban.yaml",
        "--config",
        "search/sample.yaml",
        "--config",
        "{data: {env_kwargs: {boxes: 2}}}",
    ]
    assert resolved_settings(["--config", "mine.yaml"]) == resolved_settings(given)


def test_values_that_json_lacks_pass_through_layers_and_flags(empty_folder):
    own = "data: {updates: {mismatch_tolerance: .inf}, env_kwargs: {opts: {1: a, when: 2024-01-01, small: 1e-5}}}"
    Path("base.yaml").write_text("trainer: {max_epochs: 2}")
    Path("own.yaml").write_text(own)
    Path("mine.yaml").write_text(f"extends: [base.yaml]\n{own}")
    layered = settings("--config", "mine.yaml")
    assert layered == settings("--config", "base.yaml", "--config", "own.yaml")
    assert layered["data"]["updates"]["mismatch_tolerance"] == float("inf")
    assert layered["data"]["env_kwargs"]["opts"] == {1: "a", "when": "2024-01-01", "small": 1e-5}
    nested = settings("--data.env_kwargs.opts.inner", "{1: .inf}")
    assert nested["data"]["env_kwargs"]["opts"] == {"inner": {1: float("inf")}}
    changed = settings("--config", "{trainer: {callbacks: {InstanceFilter: {keep: 0.5}}}, data: {env_kwargs: {1: 2}}}")
    assert changed["data"]["env_kwargs"][1] == 2


def test_a_file_that_extends_none_is_its_own_keys(empty_folder):
    Path("mine.yaml").write_text("extends: []\ntrainer: {max_epochs: 1}")
    assert settings("--config", "mine.yaml") == settings("--trainer.max_epochs", "1")


def test_a_shipped_file_extends_shipped_ones_whatever_is_here(empty_folder):
    before = resolved_settings(["--config", "quickstart.yaml"])
    Path("sokoban.yaml").write_text("data: {instances: 3}")
    assert resolved_settings(["--config", "quickstart.yaml"]) == before


@pytest.mark.parametrize("given", ["[]", "null"])
def test_no_callback_is_possible(given: str, empty_folder):
    assert not settings("--trainer.callbacks", given)["trainer"]["callbacks"]


def test_a_list_of_callbacks_replaces_the_default_one(empty_folder):
    resolved = settings("--config", "{trainer: {callbacks: [{class_path: callbacks.Evaluation}]}}")
    assert [one["class_path"] for one in resolved["trainer"]["callbacks"]] == ["callbacks.Evaluation"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--config", "{trainer: {callbacks: {InstanceFilter: {keep: 0.5}}}}"),
        ("--trainer.callbacks.InstanceFilter.keep", "0.5"),
        ("--trainer.callbacks.InstanceFilter.keep=0.5",),
    ],
    ids=["file", "flag", "flag with ="],
)
def test_an_argument_of_one_callback_changes_by_its_name(flags: tuple[str, ...], empty_folder):
    before, after = settings(), settings(*flags)
    assert callback(after, "InstanceFilter") == {**callback(before, "InstanceFilter"), "keep": 0.5}
    rest = [
        [one for one in resolved["trainer"]["callbacks"] if not one["class_path"].endswith("InstanceFilter")]
        for resolved in (before, after)
    ]
    assert rest[0] == rest[1]


def test_an_unknown_callback_is_refused(empty_folder):
    with pytest.raises(
        ConfigError, match=r"trainer\.callbacks\.InstanceFiltre .*name one of EpisodeLog, CollapseGuard, Inst"
    ):
        settings("--trainer.callbacks.InstanceFiltre.keep", "0.5")


def test_a_file_that_names_a_class_begins_with_its_defaults(empty_folder):
    wide = "{class_path: Uniform, init_args: {count: 3, strategy: {class_path: Beam, init_args: {width: 4}}}}"
    anew = "{class_path: Uniform, init_args: {strategy: {class_path: Beam}}}"
    plans = [part for plan in (wide, anew) for part in ("--config", f"{{data: {{plan: {plan}}}}}")]
    plan = settings(*plans, "--config", "credit/imitate.yaml")["data"]["plan"]["init_args"]
    assert (plan["count"], plan["strategy"]["init_args"]["width"]) == (8, 2)


def test_a_file_without_the_class_changes_its_arguments(empty_folder):
    resolved = settings("--config", "{data: {plan: {init_args: {count: 3}}}}")
    assert resolved["data"]["plan"]["init_args"]["count"] == 3


def test_a_credit_before_the_objective_is_refused(empty_folder):
    """It would be dropped in silence."""
    with pytest.raises(ConfigError, match=r"credit/imitate\.yaml comes before --config objective/ppo\.yaml"):
        settings("--config", "credit/imitate.yaml", "--config", "objective/ppo.yaml")


def test_every_key_is_printed_with_its_meaning(capsys: pytest.CaptureFixture[str], empty_folder):
    with pytest.raises(SystemExit) as ended:
        tsr("fit", *MINE, "--print_config=comments")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    bare = [
        line.strip()
        for above, line in pairwise(lines)
        if re.match(r"\s*\w+:", line) and not above.strip().startswith("#")
    ]
    assert {line.partition(":")[0] for line in bare} <= {"class_path", "prompt_style"}  # the environment's own argument
    assert (
        "known subclasses: Unchanged, ImitateSuccesses, ImitateEverySuccess, TreeCredit" in text
    )  # by name, as a file may write them
    assert "tsr_lightning." not in " ".join(line for line in lines if line.strip().startswith("#"))
    printed = yaml.safe_load(text)
    assert printed["data"]["updates"]["minibatches"] == 4
    assert len(printed["trainer"]["callbacks"]) == len(CALLBACKS)


@pytest.mark.slow
def test_a_run_writes_the_whole_configuration(tiny_model, empty_folder):
    flags = ("--model.policy.model", tiny_model("sokoban"), "--trainer.max_epochs", "1")
    cli = tsr("fit", *MINE, *QUICK, *flags)
    written = yaml.safe_load((cli.trainer.run_folder() / "config.yaml").read_text(encoding="utf-8"))
    assert written["data"]["updates"]["target_kl"] is None
    assert written["model"]["objective"]["init_args"]["surrogate"]["init_args"]["low"] == 0.2
