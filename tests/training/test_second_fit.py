"""A second fit of one process is a run of its own, and a Trainer that fits on goes on."""

import pytest
from lightning.pytorch import Callback, LightningModule
from optimizer_steps import SIZES

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.rollout.learnability import Learnability
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


def data_module() -> RolloutDataModule:
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
    )


def fit(data: RolloutDataModule, epochs: int, *further: int) -> list[list[Group]]:
    """The rollouts of a new agent and Trainer, which then fits on to further epochs."""
    rollouts, agent = Rollouts(), Agent(PolicySpec(SIZES), GRPO())
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[rollouts],
    )
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
    assert parts[:2] == whole[:2]
    assert [group.instance for group in parts[2]] == [group.instance for group in whole[2]]
