"""Runs the parts of a user's run on the tasks of the probe."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import lightning.pytorch as pl

from tsr_lightning.engines.base import Sampling
from tsr_lightning.objectives import PolicyGradient
from tsr_lightning.objectives.base import Objective
from tsr_lightning.probe.answers import Answers
from tsr_lightning.probe.tasks import ID
from tsr_lightning.probe.watch import Watch
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.trajectory import Origin

_INTERVAL = 5  # epochs between its evaluations
_TRAJECTORIES = 256  # of an epoch, or more
_INSTANCES = 32  # the fewest of an epoch
_HELD_OUT = HeldOut(32)
_STILL = 1e-12  # a learning rate that moves nothing

Fit = Mapping[str, Any]  # arguments of the Trainer


@dataclass(frozen=True)
class Outcome:
    """What came of a rung.

    Args:
        rung: its name.
        value: that was reached.
        needed: to pass.
        meaning: of the value, in words.
        fault: what is broken, in words; "" where the rung was passed.
    """

    rung: str
    value: float
    needed: float
    meaning: str
    fault: str = ""

    def __str__(self) -> str:
        verdict = f"FAILED: {self.fault}" if self.fault else "passed"
        return f"{self.rung:9} {self.meaning} {self.value:.2f} (needs {self.needed:.2f})  {verdict}"


@dataclass(frozen=True)
class Probed:
    """What is probed: the parts of a run, and answers that its model can give."""

    agent: Agent
    data: RolloutDataModule
    trainer: Fit
    answers: Answers

    @property
    def objective(self) -> Objective:
        """The objective, which may train on responses that the probe's one token cuts, and on nothing but responses."""
        given = self.agent.objective
        return replace(given, mask_truncated=False, observations=None) if isinstance(given, PolicyGradient) else given

    def searches(self, *, by_critic: bool) -> list[Strategy]:
        """The strategies that choose by a score, with or without a critic's values in it, and learn none."""
        searching = [one for one in self.data.plan.strategies if one.traits.origin is Origin.SEARCHED]
        scorers = [one.traits.scored_by for one in searching]
        pairs = zip(searching, scorers, strict=True)
        known = [(one, scorer) for one, scorer in pairs if scorer is not None and not scorer.learners]
        return [one for one, scorer in known if scorer.needs_critic is by_critic]

    def run(
        self, watch: Watch, epochs: int, *, still: bool = False, search: Strategy | None = None, **task: Any
    ) -> None:
        """Trains on a task.

        Args:
            watch: records the run.
            epochs: at most.
            still: whether the policy keeps its weights, and the critic alone learns.
            search: evaluated beside plain play.
            task: arguments of the environment.
        """
        agent, data, sampling = self.agent, self.data, self.data.sampling
        optimizer = replace(agent.optimizer, learning_rate=_STILL) if still else agent.optimizer
        protocol = EvalProtocol(temperature=sampling.temperature, samples=4)
        protocols = [protocol, *([replace(protocol, name="searched", search=search)] if search is not None else [])]
        fitted = Agent(self.answers.spec, self.objective, optimizer, agent.temperature, agent.seed)
        tasks = RolloutDataModule(
            ID,
            {**self.answers.env_kwargs, **task},
            plan=data.plan,
            instances=max(_INSTANCES, _TRAJECTORIES // max(1, data.plan.group_size(0))),
            held_out=_HELD_OUT,
            evaluations=protocols,
            context=data.context,
            sampling=Sampling(sampling.temperature, max_response_tokens=1),
            updates=data.updates,
            engine=data.engine,
            concurrency=data.concurrency,
            seed=data.seed,
        )
        trainer = rung_trainer(
            self.trainer,
            max_epochs=epochs,
            callbacks=[watch],
            check_val_every_n_epoch=min(epochs, _INTERVAL),
            num_sanity_val_steps=-1,
        )
        trainer.fit(fitted, datamodule=tasks)


def rung_trainer(given: Fit, **arguments: Any) -> pl.Trainer:
    """A Trainer on one device that writes and shows nothing.

    Args:
        given: arguments of the run's own Trainer.
        arguments: further ones.
    """
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    one_device = {"devices": one_of(given.get("devices", 1))}
    return pl.Trainer(**{**given, **one_device, **dict.fromkeys(silent, False), **arguments})


def one_of(devices: list[int] | str | int) -> list[int] | int:
    """One device for a rung, whose ranks would each judge their own share of an evaluation: the first that is named, or
    any.

    Args:
        devices: as a Trainer takes them.
    """
    named = devices.split(",") if isinstance(devices, str) and "," in devices else devices
    return [int(named[0])] if isinstance(named, list) and named else 1
