"""The rollouts of a fit: each collected before its updates, or ahead of them while earlier updates run."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer

from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.ahead import Ahead, Snapshot
from tsr_lightning.rollout.collect import Collected, RolloutSpec, collect
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.search.progress import Report
from tsr_lightning.search.retry import Retrying
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.hooks import is_recorded, report_wave


class RolloutSource(Protocol):
    """Where the rollouts of a fit come from."""

    def check(self, epoch: int) -> None: ...

    def take(self, epoch: int, actor: Actor) -> Collected | None: ...

    def discard_pending(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def state_dict(self, epoch: int) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


class Rollouts:
    """Collects the rollout of one epoch after the other, by the agent's policy or by a copy of it.

    Args:
        trainer: of the fit.
        agent: whose policy is trained.
        spec: what is rolled out.
        staleness: epochs that the policy of a rollout may lag behind; 0 collects before the updates.
        retry: of the copy that collects ahead.
    """

    def __init__(self, trainer: Trainer, agent: Agent, spec: RolloutSpec, staleness: int, retry: Retrying) -> None:
        self._trainer = trainer
        self._agent = agent
        self._spec = spec
        self._staleness = staleness
        self._retry = retry
        self._ahead = Ahead(self._collect_ahead)
        self._copy: Actor | None = None  # collects ahead

    def check(self, epoch: int) -> None:
        """Does nothing: any epoch can be rolled out."""

    def take(self, epoch: int, actor: Actor) -> Collected | None:
        """The rollout of an epoch; None where the plan rolls out nothing in it.

        Args:
            epoch: that begins.
            actor: plays the policy that is trained.
        """
        report = partial(report_wave, self._trainer)
        self._agent.weights.gather()
        if self._staleness:
            self._begin(epoch, actor)
        if not self._spec.plan.group_size(epoch):
            return None
        if self._staleness:
            return self._ahead.take(epoch, report)
        return self._collect(actor, epoch, epoch, report)

    def discard_pending(self) -> None:
        """Drops the rollouts that were begun ahead; those to come are collected with the weights of then."""
        self._ahead.discard_pending()

    def stop(self) -> None:
        """Ends the thread that collects ahead, and closes its environments."""
        self._ahead.stop()
        if self._copy is not None:
            self._copy.environments.close()

    def close(self) -> None:
        """Ends the thread that collects ahead, and closes its actor."""
        self.stop()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def state_dict(self, epoch: int) -> dict[str, Any]:
        """The weights of the rollouts that were begun, for a run that goes on with this epoch."""
        return self._ahead.state_dict(epoch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._ahead.load_state_dict(state_dict, self._staleness)

    def _begin(self, epoch: int, actor: Actor) -> None:
        """Begins those that may be collected with the policy as it is now, or could have been earlier."""
        _ = self._spec.instances.held_out  # drawn here, since evaluation may need it at any time
        if self._copy is None:
            self._copy = actor.copy(self._retry)
        ahead = [e for e in range(epoch, epoch + self._staleness + 1) if self._spec.plan.group_size(e)]
        limit = compat.epoch_limit(self._trainer)
        self._ahead.begin(epoch, ahead, lambda: Snapshot(epoch, self._agent.policy.snapshot()), limit)

    def _collect_ahead(self, epoch: int, snapshot: Snapshot, report: Report) -> Collected:
        if self._copy is None:
            raise RuntimeError("the actor that collects ahead is closed")
        with torch.cuda.device_of(next(self._copy.policy.parameters())):  # a thread begins on the first; none on a CPU
            self._copy.load(snapshot.weights)
            return self._collect(self._copy, epoch, snapshot.epochs, report)

    def _collect(self, actor: Actor, epoch: int, policy_epochs: int, report: Report) -> Collected:
        """The rollout of an epoch. It calls no callback and changes nothing of the Trainer."""
        objective, ranks = self._agent.objective.at(epoch), ProcessGroup.of(self._trainer)
        with compat.training_precision(self._trainer):
            record = is_recorded(self._trainer, TRAINING_ROLLOUT, epoch)
            return collect(actor, self._spec, epoch, objective, ranks, report, policy_epochs, record)
