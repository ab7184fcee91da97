"""Watches a training run of a probe: its success, which tokens the first update makes likelier, and the critic."""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from tsr_lightning.batching.schedule import Batch
from tsr_lightning.costs import Costs
from tsr_lightning.policy.chat import Chat
from tsr_lightning.probe.answers import first_characters
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.training.agent import Agent

AGREES = 0.9  # the least chance that the first update pushes a right token up more than a wrong one


class Watch(pl.Callback):
    """Records a run, and ends it where its goal is reached.

    Args:
        right: first characters of the answers that the first update should make likelier than all others; empty to
            look at no update.
        goal: the success rate of an evaluation that ends the run; None for none.
        value_goal: the correlation of the critic's values with their targets that ends it; None for none.
    """

    def __init__(self, right: tuple[str, ...] = (), goal: float | None = None, value_goal: float | None = None) -> None:
        self.right = right
        self.goal = goal
        self.value_goal = value_goal
        self.results: list[EvalResult] = []  # of the evaluations of play without search, the start first
        self.searched: list[EvalResult] = []
        self.pushes: list[tuple[bool, float]] = []  # (whether it is a right one, how much likelier) of each token
        self.moved = False  # whether any weight of the policy changed
        self.values: list[tuple[Tensor, Tensor]] = []  # the critic's values and their targets, of the last updates
        self._before: dict[str, Tensor] = {}
        self._played: list[EvalResult] = []  # the batches of the validation in progress

    @property
    def success(self) -> list[float]:
        return [result.success_rate for result in self.results]

    @property
    def agreement(self) -> float | None:
        """The chance that a right token is pushed up more than a wrong one, ties left out; None without a push."""
        up = torch.tensor([push for is_right, push in self.pushes if is_right])
        down = torch.tensor([push for is_right, push in self.pushes if not is_right])
        differences = (up[:, None] - down[None, :]).flatten() if len(down) else up
        differences = differences[differences != 0]
        return float((differences > 0).float().mean()) if len(differences) else None

    @property
    def value_correlation(self) -> float:
        """The correlation of the critic's values with what they should be, 0 where they are all alike."""
        if not self.values:
            return 0.0
        values, targets = (torch.cat(columns) for columns in zip(*self.values, strict=True))
        spread = values.std() * targets.std()
        return float(((values - values.mean()) * (targets - targets.mean())).mean() / spread) if spread > 0 else 0.0

    def on_train_start(self, trainer: pl.Trainer, agent: pl.LightningModule) -> None:
        assert isinstance(agent, Agent)
        self._before = {name: weight.clone() for name, weight in _trained(agent).items()}

    def on_train_batch_start(self, trainer: pl.Trainer, agent: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        assert isinstance(agent, Agent)
        if not isinstance(batch, Batch):
            return
        if trainer.global_step == 0 and self.right:
            self.pushes += _pushes(agent, batch, self.right)
        if agent.objective.needs.values:
            self.values = [*self.values, (batch.targets.old_values.cpu(), batch.targets.value_targets.cpu())][-8:]

    def on_train_end(self, trainer: pl.Trainer, agent: pl.LightningModule) -> None:
        assert isinstance(agent, Agent)
        after = _trained(agent)
        self.moved = any(not torch.equal(after[name], before) for name, before in self._before.items())

    def on_validation_start(self, trainer: pl.Trainer, agent: pl.LightningModule) -> None:
        self._played = []

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        agent: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if isinstance(outputs, EvalResult):
            self._played.append(outputs)

    def on_validation_end(self, trainer: pl.Trainer, agent: pl.LightningModule) -> None:
        for result in _pooled(self._played):
            (self.results if result.protocol.search is None else self.searched).append(result)
        if trainer.sanity_checking:
            return
        learnt = self.goal is not None and self.success[-1] >= self.goal
        if learnt or (self.value_goal is not None and self.value_correlation >= self.value_goal):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: pl.Trainer, agent: pl.LightningModule) -> None:
        if self.pushes and (self.agreement or 0.0) < AGREES:
            trainer.should_stop = True  # the fault is known


def _pooled(batches: Sequence[EvalResult]) -> list[EvalResult]:
    """One result of each protocol: an evaluation of many instances is played in several batches."""
    by_name: dict[str, list[EvalResult]] = {}
    for batch in batches:
        by_name.setdefault(batch.protocol.name, []).append(batch)
    return [
        EvalResult(
            parts[0].protocol,
            tuple(group for part in parts for group in part.groups),
            sum((part.costs for part in parts), Costs()),
            sum(part.seconds for part in parts),
        )
        for parts in by_name.values()
    ]


def _trained(agent: Agent) -> dict[str, Tensor]:
    """The trained weights of the policy, without the critic's."""
    return {name: weight for name, weight in agent.policy.trainable_state().items() if "value_head" not in name}


def _pushes(agent: Agent, batch: Batch, right: tuple[str, ...]) -> list[tuple[bool, float]]:
    """How much the gradient of a micro-batch raises the log-probability of each answer.

    A demonstration ends with a token that is no answer.
    """
    outputs = agent.policy.outputs(batch.packed, agent.temperature, entropies=True)
    loss = agent.objective.at(0).loss(batch.targets, outputs).total
    [gradient] = torch.autograd.grad(loss, outputs.logprobs, allow_unused=True)
    ids = batch.packed.target_ids[batch.packed.target_index].tolist()
    characters = first_characters(agent.spec, Chat.of(agent.spec, agent.tokenizer), max(ids) + 1)
    pushes = [0.0] * len(ids) if gradient is None else (-gradient).tolist()
    answers = [(characters[token], push) for token, push in zip(ids, pushes, strict=True)]
    return [(character in right, push) for character, push in answers if character]
