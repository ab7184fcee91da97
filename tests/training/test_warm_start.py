"""Warm start, mixture and pure reinforcement in one run, with demonstrations of the oracle and of a file."""

import csv
import json
import shutil
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from commands import QUICK, ROOT, TINY, in_folder, tsr

from callbacks.conversation_log import ConversationLog
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import SFT
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.trajectory import Origin

# the resumed run writes to a new folder on purpose
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")

RUN = ("fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", TINY)
EXPERT = ("--config", "search/expert.yaml", "--config", "objective/sft.yaml", "--data.instances", "4")
EPOCHS, RESUMED_AFTER = 6, 3  # in the middle of the mixture


def uniform(strategy: str, count: int) -> dict[str, object]:
    return {"class_path": "Uniform", "init_args": {"strategy": {"class_path": strategy}, "count": count}}


MIXTURE = [{"strategy": {"class_path": "Sample"}, "count": 3}, {"strategy": {"class_path": "Expert"}, "count": 1}]
PLAN = {
    "class_path": "Phases",
    "init_args": {
        "plans": [
            uniform("Expert", 1),
            {"class_path": "Mixed", "init_args": {"members": MIXTURE}},
            uniform("Sample", 4),
        ],
        "epochs": [2, 2],
    },
}
CALLBACKS = [
    {
        "class_path": "ModelCheckpoint",
        "init_args": {"filename": "{epoch}", "every_n_epochs": 1, "save_top_k": -1, "save_on_train_epoch_end": True},
    }
]


def arguments(objective: str, epochs: int) -> tuple[str, ...]:
    return (
        *(*RUN, "--config", f"objective/{objective}.yaml", "--config", "warm_start/supervised.yaml"),
        *("--config", "plan.yaml", "--trainer.max_epochs", str(epochs), "--trainer.callbacks", json.dumps(CALLBACKS)),
        *("--model.optimizer.learning_rate", "0.01", "--model.optimizer.warmup_updates", "0"),
        *("--model.objective.init_args.format_penalty", "0.1"),  # a signal though no sample succeeds
        *("--data.updates.minibatches", "1", "--trainer.check_val_every_n_epoch", str(EPOCHS + 1)),
        *("--trainer.logger", '{"class_path": "CSVLogger", "init_args": {"save_dir": "runs", "name": "a"}}'),
    )


def figures(folder: Path, version: int) -> list[dict[str, str]]:
    """The figures of every update, in order, without those that depend on time."""
    metrics = folder / "runs" / "a" / f"version_{version}" / "metrics.csv"
    rows = list(csv.DictReader(metrics.read_text().splitlines()))
    names = sorted(name for name in rows[0] if name.startswith("train/"))
    return [{name: row[name] for name in names} for row in rows if row["train/loss"]]


@pytest.fixture(scope="module")
def oracle_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five or more of the oracle's successes."""
    folder = tmp_path_factory.mktemp("oracle")
    log = '[{"class_path": "callbacks.ConversationLog", "init_args": {"path": "out/oracle.jsonl"}}]'
    with in_folder(folder):
        tsr(*RUN, *EXPERT, "--data.plan.init_args.strategy.init_args.noise", "0", "--trainer.callbacks", log)
    return folder / "out" / "oracle.jsonl"


@pytest.mark.parametrize("objective", [pytest.param("grpo", marks=pytest.mark.exhaustive), "ppo"])
def test_one_configuration_runs_through_all_phases_and_resumes(objective: str, tmp_path: Path):
    (tmp_path / "plan.yaml").write_text(json.dumps({"data": {"plan": PLAN}}))
    with in_folder(tmp_path):
        whole = tsr(*arguments(objective, EPOCHS)).model.state_dict()
        started = tsr(*arguments(objective, RESUMED_AFTER))
        checkpoint = sorted(Path("runs").glob(f"a/version_1/checkpoints/*={RESUMED_AFTER - 1}.ckpt"))[-1]
        written = ("--config", "runs/a/version_1/config.yaml", "--ckpt_path", checkpoint)
        resumed = tsr("fit", *written, "--trainer.max_epochs", EPOCHS).model.state_dict()
    assert started.trainer.global_step == RESUMED_AFTER
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    updates = figures(tmp_path, 0)
    assert updates == figures(tmp_path, 1) + figures(tmp_path, 2)
    assert [float(each["train/supervised_weight"]) for each in updates] == pytest.approx([1, 1, 1, 1, 0, 0])
    assert [float(each["train/policy_weight"]) for each in updates] == pytest.approx([0, 0, 1, 1, 1, 1])
    assert float(updates[1]["train/supervised_loss"]) < float(updates[0]["train/supervised_loss"])


@pytest.mark.parametrize("demonstrated", [0, 1, 3])
def test_one_number_splits_a_budget_of_three_epochs(demonstrated: int, tmp_path: Path):
    (tmp_path / "plan.yaml").write_text((ROOT / "configs" / "warm_start" / "split.yaml").read_text(encoding="utf-8"))
    split = ("--data.plan.init_args.epochs", f"[{demonstrated}]", "--data.instances", "2")
    with in_folder(tmp_path):
        tsr(*arguments("grpo", 3), *split)
    weights = [float(each["train/supervised_weight"]) for each in figures(tmp_path, 0)]
    assert weights == pytest.approx([1] * demonstrated + [0] * (3 - demonstrated))


def test_a_warm_start_and_a_mixture_from_a_file(oracle_file: Path, tmp_path: Path):
    """Two epochs of the file alone, one of both, one of samples alone; resumed after the first."""
    shutil.copy(oracle_file, tmp_path / "oracle.jsonl")
    plans = [{"class_path": "NoRollout"}, uniform("Sample", 2)]
    plan = {"class_path": "Phases", "init_args": {"plans": plans, "epochs": [2]}}
    file = {"path": "oracle.jsonl", "count": 3, "epochs": 3}
    (tmp_path / "plan.yaml").write_text(json.dumps({"data": {"plan": plan, "demonstrations": file}}))
    with in_folder(tmp_path):
        whole = tsr(*arguments("grpo", 4)).model.state_dict()
        tsr(*arguments("grpo", 1))
        [checkpoint] = Path("runs").glob("a/version_1/checkpoints/*=0.ckpt")
        resumed = tsr(*arguments("grpo", 4), "--ckpt_path", str(checkpoint)).model.state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    updates = figures(tmp_path, 0)
    assert [float(each["train/supervised_weight"]) for each in updates] == pytest.approx([1, 1, 1, 0])
    assert [float(each["train/policy_weight"]) for each in updates] == pytest.approx([0, 0, 1, 1])


def test_a_file_gives_the_tokens_that_the_oracle_gave(empty_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Written and read again, a demonstration has the prompts and responses that it was rolled out with."""
    rolled_out = []

    def keep(self: ConversationLog, trainer, agent, groups):
        rolled_out.extend(group.trajectories[0] for group in groups)
        return original(self, trainer, agent, groups)

    original = ConversationLog.on_rollout_end
    monkeypatch.setattr(ConversationLog, "on_rollout_end", keep)
    log = '{"class_path": "callbacks.ConversationLog", "init_args": {"path": "all.jsonl", "successes_only": false}}'
    tsr(*RUN, *EXPERT, "--trainer.callbacks", f"[{log}]", "--data.context", "Full")
    count = ("--data.demonstrations.count", str(len(rolled_out)))
    file = ("--data.demonstrations.path", "all.jsonl", *count)
    cli = tsr(*RUN, *EXPERT, *file, "--data.context", "Full", "--trainer.max_epochs", "1")
    data = cli.datamodule
    assert data.demonstrations is not None
    read = data.demonstrations.groups(data.key, 0, data.actor.chat, 2048)
    assert len(read) == len(rolled_out) == 8
    by_line = {group.instance: group.trajectories[0] for group in read}
    for line, theirs in enumerate(rolled_out, start=1):
        mine = by_line[line]
        assert mine.origin is theirs.origin is Origin.DEMONSTRATED
        assert [turn.text for turn in mine.turns] == [turn.text for turn in theirs.turns]
        assert len(mine.turns) == len(theirs.turns)
        assert [turn.prompt for turn in mine.turns] == [turn.prompt for turn in theirs.turns]
        assert [turn.response for turn in mine.turns] == [turn.response for turn in theirs.turns]


def test_the_log_holds_the_oracles_successes_in_trls_format(oracle_file: Path):
    records = [json.loads(line) for line in oracle_file.read_text(encoding="utf-8").splitlines()]
    assert len(records) >= 5
    assert {record["epoch"] for record in records} == {0, 1}
    for record in records:
        roles = [message["role"] for message in record["messages"]]
        start = 1 if roles[0] == "system" else 0
        assert roles[start:] == ["user", "assistant"] * (len(roles[start:]) // 2)
        assert (record["success"], record["strategy"]) == (True, "Expert")


def test_a_bad_file_is_refused_without_the_command_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def build(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(Policy, "__init__", build)
    data = RolloutDataModule("tsr/Sokoban-v0", demonstrations=Demonstrations(str(tmp_path / "absent.jsonl")))
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    with pytest.raises(ConfigError, match=r"absent\.jsonl.*no such file"):
        trainer.fit(Agent(PolicySpec("embedded/sokoban"), SFT()), data)


@pytest.mark.slow
def test_random_actions_teach_the_form_of_an_answer(tmp_path: Path) -> None:
    """A new policy, whose answers are none: they are valid after forty updates on random legal actions."""
    with in_folder(tmp_path):
        cli = tsr(
            *("fit", "--config", "frozen_lake.yaml", "--config", "warm_start/form.yaml", *QUICK),
            *("--model.policy.model", TINY, "--data.instances", "32", "--data.held_out.instances", "8"),
            *("--model.optimizer.learning_rate", "0.01", "--data.updates.minibatches", "4"),
            *("--trainer.max_epochs", "10", "--trainer.check_val_every_n_epoch", "10"),
            *(
                "--trainer.num_sanity_val_steps",
                "-1",
                "--trainer.callbacks",
                '[{"class_path": "callbacks.Evaluation"}]',
            ),
        )
    evaluation = json.loads(next(tmp_path.rglob("evaluation.json")).read_text())["evaluations"]["sampled"]
    before, after = (evaluation[when]["figures"]["valid_actions"] for when in ("before", "after"))
    assert cli.trainer.global_step == 40
    assert before < 0.05
    assert after > 0.8
