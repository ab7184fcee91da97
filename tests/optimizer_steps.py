"""One optimizer step of a real Trainer on ragged groups, and its gradients, in one process or as one of two ranks."""

import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from commands import ROOT
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from transformers import PretrainedConfig

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.objectives import Objective
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.search.plan import Mixed, PlanEntry, Uniform
from tsr_lightning.search.strategies import Beam, Sample
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.trajectory import Ended, Group, Origin, Turn

SIZES = Scratch(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=512
)
QUIET: dict[str, Any] = {  # of a Trainer on the CPU that writes and shows nothing
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def parity_data(updates: Updates) -> RolloutDataModule:
    """Eight instances of four samples an epoch, and no evaluation."""
    return RolloutDataModule(
        "parity:Parity-v0",
        plan=Uniform(Sample(), 4),
        instances=8,
        held_out=HeldOut(instances=2),
        evaluations=[],
        sampling=Sampling(max_response_tokens=2),
        updates=updates,
    )


PLAN = Mixed([PlanEntry(Sample(), 3), PlanEntry(Beam(width=2, candidates=2), 1)])
ONE, SEVERAL = 100_000, 60  # tokens of a micro-batch
# By group, member and turn; the returns of the second group are equal.
REWARDS = (
    ((0.0, 0.0, 1.0), (0.5, 0.0, 0.0), (0.0, 1.0, 0.5), (0.0, 0.0, 0.0)),
    ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.0, 1.0, 0.0)),
    ((0.0, 0.5, 1.0), (1.0, 1.0, 1.0), (0.0, 0.5, 0.0), (1.0, 0.0, 0.0)),
)
CUT = {(0, 1, 1): 1, (2, 0, 0): 1, (2, 2, 1): 0}  # tokens that are left of a response, by group, member and turn
UNFINISHED = (0, 3, 2)  # the one last response that counts as cut by a token limit
OLD, NOW = 0.05, 0.03  # how far the weights move from the reference to the rollout, and from there to the step


@dataclass(frozen=True)
class Step:
    """What an optimizer step was made from, and its gradients."""

    groups: list[Group]
    config: PretrainedConfig  # of the model
    weights: dict[str, dict[str, Tensor]]  # of the reference, of the rollout ("old") and of the step ("now")
    gradients: dict[str, Tensor]
    figures: dict[str, float]
    micro_batches: int


def optimizer_step(objective: Objective, micro_batch_tokens: int, ranks: int = 1) -> Step:
    recorder = Recorder()
    trainer = Trainer(
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        callbacks=[recorder],
        **QUIET,
    )
    data = RolloutDataModule(
        "corridor:Corridor-v0",
        plan=PLAN,
        instances=3,
        held_out=HeldOut(instances=2),
        sampling=Sampling(max_response_tokens=8),
        # the weights have moved since the rollout, on purpose
        updates=Updates(minibatches=1, micro_batch_tokens=micro_batch_tokens, mismatch_tolerance=None),
    )
    agent = Agent(PolicySpec(SIZES), objective)
    trainer.fit(agent, data)
    return Step(
        recorder.groups,
        agent.policy.causal_lm.config,
        recorder.weights,
        recorder.gradients,
        recorder.figures,
        recorder.micro_batches,
    )


class Recorder(Callback):
    """Makes the groups ragged, moves the weights before the estimates and before the step, and records the step."""

    groups: list[Group]
    gradients: dict[str, Tensor]
    figures: dict[str, float]

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, Tensor]] = {}
        self.micro_batches = 0

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        self.groups = [ragged(i, group) for i, group in enumerate(groups)]
        self.weights["reference"] = copied(agent)
        self.weights["old"] = moved(agent, OLD, seed=1)
        return self.groups

    def on_train_batch_start(self, trainer: Trainer, agent: LightningModule, batch: Any, batch_idx: int) -> None:
        assert isinstance(agent, Agent)
        if batch_idx == 0:
            self.weights["now"] = moved(agent, NOW, seed=2)
        self.micro_batches += 1

    def on_before_optimizer_step(self, trainer: Trainer, agent: LightningModule, optimizer: Any) -> None:
        assert isinstance(agent, Agent)
        parameters = agent.policy.named_parameters()
        self.gradients = {name: p.grad.clone() for name, p in parameters if p.grad is not None}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.figures = {name: float(value) for name, value in trainer.callback_metrics.items()}


def copied(agent: Agent) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in agent.policy.trainable_state().items()}


@torch.no_grad()
def moved(agent: Agent, size: float, seed: int) -> dict[str, Tensor]:
    """Adds the same noise on every rank."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in agent.policy.parameters():
        if parameter.requires_grad:
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return copied(agent)


def ragged(number: int, group: Group) -> Group:
    """Given rewards; turns cut to one token or to none, a demonstration, successes and truncations."""
    members = [
        replace(
            trajectory,
            turns=tuple(
                _turn(turn, reward, CUT.get((number, member, place)), finished=(number, member, place) != UNFINISHED)
                for place, (turn, reward) in enumerate(zip(trajectory.turns, REWARDS[number][member], strict=True))
            ),
            origin=Origin.DEMONSTRATED if (number, member) == (2, 1) else trajectory.origin,
            ended=Ended.TURN_LIMIT if member % 2 else Ended.SUCCEEDED,
        )
        for member, trajectory in enumerate(group.trajectories)
    ]
    return Group(group.instance, tuple(members))


def _turn(turn: Turn, reward: float, tokens: int | None, *, finished: bool) -> Turn:
    response, logprobs = turn.response[:tokens], turn.behaviour_logprobs[:tokens]
    return replace(turn, reward=reward, response=response, behaviour_logprobs=logprobs, finished=finished)


def run_rank(cases: Mapping[str, Objective], folder: Path, environment: Mapping[str, str]) -> None:
    """Runs all cases as one of two ranks, and writes the steps to `rank0.pkl` or `rank1.pkl`."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ.update(environment)
    torch.set_num_threads(1)
    rank = environment["LOCAL_RANK"]
    with (folder / f"output{rank}.txt").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        steps = {name: optimizer_step(objective, SEVERAL, ranks=2) for name, objective in cases.items()}
    (folder / f"rank{rank}.pkl").write_bytes(pickle.dumps(steps))
