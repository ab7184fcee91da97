"""Agent, data module and Trainer built in Python, where no command line has linked or checked arguments."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest

from tsr_lightning.engines.base import Sampling
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, GraphCredit, MaxBackup, Objective
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.rollout.evaluate import evaluate
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.search.plan import Plan, Uniform
from tsr_lightning.search.strategies import Expert, Sample
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fits an agent, which must be refused before a model is built."""

    def build(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(Policy, "__init__", build)

    def run(plan: Plan, temperature: float, objective: Objective | None = None, **settings: Any) -> None:
        agent = Agent(PolicySpec("embedded/sokoban"), objective or GRPO(), temperature=temperature)
        data = RolloutDataModule(
            **{"env": "tsr/Sokoban-v0", "plan": plan, "sampling": Sampling(temperature=0.7), **settings}
        )
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(agent, data)

    return run


def test_a_temperature_other_than_that_of_sampling_is_refused(fit: Callable[..., None]):
    with pytest.raises(ConfigError, match=r"model\.temperature is 1\.0: give 0\.7"):
        fit(Uniform(Sample(), 8), temperature=1.0)


def test_a_plan_that_the_objective_cannot_learn_from_is_refused(fit: Callable[..., None]):
    with pytest.raises(ConfigError, match=r"Expert are no samples of the policy"):
        fit(Uniform(Expert(), 8), temperature=0.7)


@pytest.mark.parametrize("in_processes", [False, True])
def test_the_best_outcome_under_chance_is_refused(fit: Callable[..., None], in_processes: bool):
    graph = GRPO(searched=GraphCredit(MaxBackup()))
    with pytest.raises(ConfigError, match="GraphCredit has a MaxBackup, and equal actions in one state of"):
        fit(Uniform(Sample(), 8), 0.7, graph, env="tsr/FrozenLake-v0", env_processes=in_processes)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"instances": 0}, r"data\.instances is 0: give 1 or more"),
        ({"context_tokens": 0}, r"data\.context_tokens is 0: give 1 or more, or null"),
        ({"sampling": Sampling(temperature=0.0)}, r"data\.sampling\.temperature is 0\.0: log-probabilities"),
    ],
)
def test_counts_of_zero_are_refused(fit: Callable[..., None], settings: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        fit(Uniform(Sample(), 8), temperature=0.7, **settings)


def test_a_held_out_set_has_instances():
    with pytest.raises(ConfigError, match=r"HeldOut\.instances is -3: give 0 or more"):
        HeldOut(instances=-3)
    with pytest.raises(ConfigError, match=r"HeldOut\.instances is 0: give 1 or more, which are played"):
        evaluate("embedded/sokoban", "tsr/Sokoban-v0", held_out=HeldOut(instances=0))
