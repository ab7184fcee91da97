"""Which validations evaluate a protocol: by the rule, in a run, in one that was resumed, and outside of a fit."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from commands import QUICK, ROOT, in_folder, tsr
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import PPO
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rollout.protocol import EvalProtocol, ValidationSchedule
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule

EVERY = [
    EvalProtocol("sampled"),
    EvalProtocol("second", every_n_validations=2),
    EvalProtocol("ends", 1.0, 8, None, None),
]
PROTOCOLS = json.dumps(
    [{"name": one.name, "samples": one.samples, "every_n_validations": one.every_n_validations} for one in EVERY]
)
EVALUATION = '{"class_path": "callbacks.Evaluation"}'
KEEPING = '{"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch}", "save_top_k": -1, '
KEEPING += '"save_on_train_epoch_end": true}}'
RUN = (
    *("--config", "sokoban.yaml", "--config", "search/beam.yaml", "--config", "credit/imitate.yaml", *QUICK),
    *("--trainer.max_epochs", "5", "--trainer.check_val_every_n_epoch", "1", "--trainer.num_sanity_val_steps", "-1"),
    *("--trainer.callbacks", f"[{EVALUATION}, {KEEPING}]", "--data.evaluations", PROTOCOLS),
)


@pytest.mark.parametrize("interval", [1, 3, 10])
@pytest.mark.parametrize("every", [1, 2, 3, None])
def test_due_are_every_nth_validation_the_first_and_the_last(every: int | None, interval: int):
    for max_epochs in range(1, 45):
        validations = [0, *range(interval, max_epochs + 1, interval)]  # as Lightning counts them
        numbers = range(0, len(validations), every or len(validations))
        expected = sorted({validations[number] for number in numbers} | {0, validations[-1]})
        protocol, schedule = EvalProtocol(every_n_validations=every), ValidationSchedule(interval, max_epochs)
        assert [epochs for epochs in validations if protocol.is_due(epochs, schedule)] == expected


def test_every_validation_counts_those_of_a_resumed_run_between_two():
    schedule = ValidationSchedule(10, 60)
    assert EvalProtocol().is_due(5, schedule)
    assert not EvalProtocol(every_n_validations=2).is_due(5, schedule)
    assert not EvalProtocol(every_n_validations=None).is_due(55, schedule)


def scalars(folder: Path, tag: str) -> dict[int, float]:
    """The values of a tag by abscissa."""
    [events] = folder.rglob("events.out.*")
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    return {event.step: event.value for event in accumulator.Scalars(tag)}


def report(folder: Path, name: str = "evaluation.json") -> dict[str, Any]:
    [path] = folder.rglob(name)
    return json.loads(path.read_text())["evaluations"]


def timeless(evaluations: dict[str, Any]) -> dict[str, Any]:
    for one in evaluations.values():
        for side in ("before", "after"):
            del one[side]["figures"]["seconds"]
    return evaluations


@pytest.fixture(scope="module")
def run(tiny_model: Callable[[str], Path]) -> tuple[object, ...]:
    """The flags of the run."""
    return (*RUN, "--model.policy.model", tiny_model("sokoban"))


@pytest.fixture(scope="module")
def uninterrupted(run: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    with in_folder(folder):
        tsr("fit", *run)
    return folder


def checkpoint(folder: Path, epochs: int) -> Path:
    [path] = folder.rglob(f"epoch={epochs - 1}.ckpt")
    return path


def test_a_run_evaluates_what_is_due(uninterrupted: Path):
    assert list(scalars(uninterrupted, "val/sampled/success_rate")) == [0, 1, 2, 3, 4, 5]
    assert list(scalars(uninterrupted, "val/second/success_rate")) == [0, 2, 4, 5]
    assert list(scalars(uninterrupted, "val/ends/success_rate")) == [0, 5]
    assert list(scalars(uninterrupted, "val/ends/newly_solved")) == [5]
    assert [one["after"]["epochs"] for one in report(uninterrupted).values()] == [5, 5, 5]


def test_a_resumed_run_evaluates_what_the_uninterrupted_one_does(run, uninterrupted: Path, empty_folder: Path):
    resumed = tsr("fit", *run, "--ckpt_path", checkpoint(uninterrupted, 3))
    assert (
        "; 20 rolled out for training" in resumed.datamodule.instances.summary
    )  # in five epochs, of which it made two
    assert list(scalars(empty_folder, "val/sampled/success_rate")) == [4, 5]
    assert list(scalars(empty_folder, "val/second/success_rate")) == [4, 5]
    assert list(scalars(empty_folder, "val/ends/success_rate")) == [5]
    assert timeless(report(empty_folder)) == timeless(report(uninterrupted))


def test_a_finished_run_that_is_resumed_rolls_out_and_evaluates_nothing(
    run, uninterrupted: Path, empty_folder: Path, caplog: pytest.LogCaptureFixture
):
    """Lightning asks for the first batch, and with it for a rollout, before it looks whether an epoch is left."""
    with caplog.at_level("INFO"):
        resumed = tsr("fit", *run, "--ckpt_path", checkpoint(uninterrupted, 5))
    assert "; 20 rolled out for training" in resumed.datamodule.instances.summary
    assert (
        "the run is finished: trainer.max_epochs is 5, and the policy has been trained for 5 epochs; go on with more, "
        "as by --trainer.max_epochs 10"
    ) in caplog.messages
    assert not [path for path in empty_folder.rglob("events.out.*") if "val/" in path.read_text(errors="replace")]
    with pytest.raises(
        ConfigError, match=r"trainer\.max_epochs is 3: the checkpoint's policy has been trained for 5 epo"
    ):
        tsr("fit", *run, "--trainer.max_epochs", "3", "--ckpt_path", checkpoint(uninterrupted, 5))


def test_no_protocol_is_no_validation_and_no_warning(run, empty_folder: Path):
    trained = tsr("fit", *run, "--data.evaluations", "[]", "--trainer.max_epochs", "1", "--trainer.callbacks", "null")
    assert trained.trainer.fit_loop.epoch_progress.current.completed == 1
    assert trained.trainer.global_step > 0
    assert trained.trainer.limit_val_batches == 1.0  # for its next fit


def test_no_epoch_is_no_rollout(run, empty_folder: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO"):
        cli = tsr("fit", *run, "--trainer.max_epochs", "0")
    assert "; 0 rolled out for training" in cli.datamodule.instances.summary
    assert "trainer.max_epochs is 0: nothing is rolled out or trained" in caplog.messages
    assert list(scalars(empty_folder, "val/sampled/success_rate")) == [0]


def test_validate_evaluates_all_and_knows_the_start(run, uninterrupted: Path, empty_folder: Path):
    tsr("validate", *run, "--ckpt_path", checkpoint(uninterrupted, 3))
    found = report(empty_folder, "evaluation.validate.json")
    assert {name: one["after"]["epochs"] for name, one in found.items()} == {"sampled": 3, "second": 3, "ends": 3}
    start = report(uninterrupted)["ends"]["before"]["instances"]
    never = {row["instance"] for row in start if row["successes"] == 0}
    now = {row["instance"] for row in found["ends"]["after"]["instances"] if row["successes"] > 0}
    assert found["ends"]["after"]["figures"]["newly_solved"] == len(never & now)


def test_the_gap_to_held_out_instances_is_of_one_policy(uninterrupted: Path):
    for key in ("success_rate", "return"):
        gaps = scalars(uninterrupted, f"rollout/search_gap_held_out/{key}")
        searched, plain = (scalars(uninterrupted, f"{part}/{key}") for part in ("rollout/searched", "val/sampled"))
        assert gaps == pytest.approx({epochs: searched[epochs] - plain[epochs] for epochs in range(5)}, abs=1e-6)


def test_every_figure_of_a_run_is_defined(uninterrupted: Path):
    pages = [ROOT / "docs" / "diagnostics.md", ROOT / "docs" / "objectives" / "diagnostics.md"]
    defined = {tag for page in pages for tag in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))}
    [events] = uninterrupted.rglob("events.out.*")
    logged = EventAccumulator(str(events)).Reload().Tags()["scalars"]
    general = {
        re.sub(
            r"^(val|Held-out (?:success|return))/[^/]+", r"\1/<protocol>", tag.replace("rollout/searched/", "rollout/")
        )
        for tag in logged
        if tag.startswith(("rollout/", "val/", "Held-out"))
    }
    assert len(general) > 30
    assert sorted({re.sub(r"@\d+", "@<k>", tag) for tag in general} - defined) == []


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"every_n_validations": 0}, r"data\.evaluations\.sampled\.every_n_validations is 0: give 1 or more, or null"),
        ({"name": "rollout"}, r"data\.evaluations\.name is 'rollout': give a word of its own"),  # training's
        ({"name": "with/slash"}, r"data\.evaluations\.name is 'with/slash': give a word of its own"),
        ({"name": ""}, r"data\.evaluations\.name is '': give a word of its own"),
        ({"name": "rare", "every_n_validations": -2}, r"data\.evaluations\.rare\.every_n_validations is -2: give 1"),
    ],
)
def test_bad_numbers_are_refused(protocol: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        EvalProtocol(**protocol)


@pytest.mark.parametrize("every", [2, None])
def test_a_fit_without_a_known_last_validation_is_refused(every: int | None, monkeypatch: pytest.MonkeyPatch):
    def build(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(Policy, "__init__", build)
    data = RolloutDataModule("tsr/Sokoban-v0", evaluations=[EvalProtocol("rare", every_n_validations=every)])
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=-1,
        max_steps=10,
    )
    with pytest.raises(ConfigError, match=r"data\.evaluations\.rare\.every_n_validations is .*or 1 to evaluate it at"):
        trainer.fit(Agent(PolicySpec("embedded/sokoban"), PPO()), data)


def test_two_protocols_of_one_name_are_refused_before_a_model_loads(empty_folder: Path):
    twice = json.dumps([{"name": "mine"}, {"name": "mine", "temperature": 0.0}])
    with pytest.raises(ConfigError, match=r"data\.evaluations is \['mine', 'mine'\]: two are named 'mine'"):
        tsr("fit", "--config", "sokoban.yaml", *QUICK, "--data.evaluations", twice)
    assert not list(empty_folder.rglob("*.ckpt"))
