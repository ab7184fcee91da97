"""A second fit of one process is a run of its own, and a Trainer that fits on goes on."""

import json
from pathlib import Path

import pytest
from lightning.pytorch import Callback, LightningModule
from optimizer_steps import QUIET, SIZES

from callbacks import CollapseGuard, ConversationLog, Evaluation, PromptInformation
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.rollout.learnability import Learnability
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search import Beam, ProcessScore, Sample
from tsr_lightning.search.plan import Mixed, PlanEntry
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.trainer import Trainer
from tsr_lightning.trajectory import Group

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch


class Rollouts(Callback):
    """Keeps the groups of every epoch."""

    def __init__(self) -> None:
        self.groups: list[list[Group]] = []

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self.groups.append(groups)
        return groups


def data_module(staleness: int = 0) -> RolloutDataModule:
    """A data module that revisits instances and trains a process score."""
    plan = Mixed([PlanEntry(Sample(), 4), PlanEntry(Beam(1, 2, ProcessScore()), 1)])
    return RolloutDataModule(
        "parity:Parity-v0",
        plan=plan,
        instances=4,
        learnability=Learnability(),
        held_out=HeldOut(instances=2),
        evaluations=[],
        sampling=Sampling(max_response_tokens=2),
        updates=Updates(min_trajectories=1),
        staleness=staleness,
    )


def fit(data: RolloutDataModule, epochs: int, *further: int) -> list[list[Group]]:
    """The rollouts of a new agent and Trainer, which then fits on to further epochs."""
    rollouts, agent = Rollouts(), Agent(PolicySpec(SIZES), GRPO())
    trainer = Trainer(max_epochs=epochs, callbacks=[rollouts], **QUIET)
    trainer.fit(agent, datamodule=data)
    for limit in further:
        trainer.fit_loop.max_epochs = limit
        trainer.fit(agent, datamodule=data)
    return rollouts.groups


def test_a_second_fit_knows_nothing_of_the_first(empty_folder: object) -> None:
    data = data_module()
    first, summary = fit(data, 3), data.instances.summary
    assert any({g.instance for g in first[0]} & {g.instance for g in later} for later in first[1:])  # drawn again
    assert data.plan.learners[0].state_dict(3)["weights"]
    assert fit(data, 3) == first
    assert data.instances.summary == summary


def test_a_trainer_that_fits_on_goes_on_with_what_it_knows(empty_folder: object) -> None:
    whole, parts = fit(data_module(), 3), fit(data_module(), 2, 3)
    assert len(parts) == 3
    assert parts[:2] == whole[:2]
    assert [group.instance for group in parts[2]] == [group.instance for group in whole[2]]


def test_rollouts_ahead_of_a_trainer_that_fits_on_have_the_weights_that_they_would_have_had(
    empty_folder: object,
) -> None:
    """The third is collected by the policy after one epoch, though the fit that goes on begins with that after two."""
    whole, parts = fit(data_module(staleness=1), 3), fit(data_module(staleness=1), 2, 3)
    assert [group.trajectories[0].policy_epochs for group in parts[2]] == [1] * len(parts[2])
    assert parts == whole


def test_callbacks_of_a_trainer_that_fits_on_keep_what_they_know(tmp_path: Path) -> None:
    """Also where it validates between."""
    evaluation, guard, information = Evaluation(), CollapseGuard(), PromptInformation(every_n_epochs=2)
    log = ConversationLog(str(tmp_path / "log.jsonl"), successes_only=False)
    data = RolloutDataModule(
        "parity:Parity-v0",
        plan=Mixed([PlanEntry(Sample(), 4)]),
        instances=8,
        held_out=HeldOut(instances=2),
        evaluations=[EvalProtocol()],
        sampling=Sampling(max_response_tokens=2),
        updates=Updates(min_trajectories=1),
    )
    watching = [evaluation, guard, information, log]
    trainer = Trainer(max_epochs=1, num_sanity_val_steps=-1, callbacks=watching, default_root_dir=tmp_path, **QUIET)
    agent = Agent(PolicySpec(SIZES), GRPO())
    trainer.fit(agent, datamodule=data)
    first, watched = evaluation.state_dict(), guard.state_dict()["histories"]
    trainer.validate(agent, datamodule=data)
    assert "end" in evaluation.state_dict()["history"]
    assert evaluation.state_dict()["costs"] == first["costs"]
    trainer.fit_loop.max_epochs = 2
    trainer.fit(agent, datamodule=data)
    then = evaluation.state_dict()
    assert then["before"] == first["before"] != {}
    assert [one["costs"]["epochs"] for one in then["history"]["evaluations"]] == [0, 1, 2]
    tokens = [one["costs"]["tokens_generated"] for one in then["history"]["evaluations"]]
    assert 0 == tokens[0] < tokens[1] < tokens[2]
    assert tokens[2] < 3 * tokens[1]  # those of the first fit count once
    assert {json.loads(line)["epoch"] for line in (tmp_path / "log.jsonl").read_text().splitlines()} == {0, 1}
    assert watched
    assert set(guard.state_dict()["histories"]) >= set(watched)
    assert information.of_training()  # of the first epoch: the second measures nothing
