"""What is done about a collapse: Warn, Stop or Restore. Knows nothing of how a collapse is noticed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.optim.lr_scheduler import LRScheduler

from tsr_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint of the best policy so far."""

    path: str
    epochs: int  # of training that it had had
    held_out: bool  # measured by an evaluation, which goes before any rollout
    success: float  # the lower end of its success rate's 95% interval


class Done(NamedTuple):
    """What was done about a collapse."""

    message: str
    restored: bool = False


class OnCollapse(ABC):
    """What is done about a collapse. Frozen dataclasses derive from it: their fields are the arguments in YAML."""

    @property
    def needs_best(self) -> bool:
        """Whether the best policy's checkpoint is kept for it."""
        return False

    @abstractmethod
    def act(self, trainer: Trainer, agent: LightningModule, best: Best | None, restores: int) -> Done:
        """On all ranks alike, at the end of an epoch.

        Args:
            trainer: of the run.
            agent: whose policy has collapsed.
            best: the checkpoint to go back to.
            restores: how often this run went back already.
        """


@dataclass(frozen=True)
class Warn(OnCollapse):
    """Says so, once per collapse, and trains on."""

    def act(self, trainer: Trainer, agent: LightningModule, best: Best | None, restores: int) -> Done:
        return Done("training goes on")


@dataclass(frozen=True)
class Stop(OnCollapse):
    """Ends the training after the epoch, as if it were the last."""

    def act(self, trainer: Trainer, agent: LightningModule, best: Best | None, restores: int) -> Done:
        trainer.should_stop = True
        return Done("training stops")


@dataclass(frozen=True)
class Restore(OnCollapse):
    """Goes back to the weights and the optimizer's state of the best policy, with smaller steps.

    Epochs, updates and the step sizes' schedule go on counting, so the next rollout has draws of its own and no update
    is repeated. A collapse for which no restore is left stops the training.

    Args:
        at_most: restores in a run, over all its resumes.
        learning_rate_factor: the step sizes are multiplied by it at each restore; 1 leaves them.

    Raises:
        ConfigError: for an argument out of its range.
    """

    at_most: int = 3
    learning_rate_factor: float = 0.5

    def __post_init__(self) -> None:
        if self.at_most < 1:
            raise ConfigError(f"Restore.at_most is {self.at_most}: give 1 or more, or use Stop")
        if not 0 < self.learning_rate_factor <= 1:
            raise ConfigError(
                f"Restore.learning_rate_factor is {self.learning_rate_factor}: give more than 0 and up to 1 (1 leaves "
                "the step sizes)"
            )

    @property
    def needs_best(self) -> bool:
        return True

    def act(self, trainer: Trainer, agent: LightningModule, best: Best | None, restores: int) -> Done:
        if best is None:
            trainer.should_stop = True
            return Done("there is no checkpoint to go back to, and training stops")
        if restores >= self.at_most:
            trainer.should_stop = True
            return Done(
                f"it went back {restores} times already (at_most), so training stops; the best policy is in {best.path}"
            )
        go_back(trainer, agent, best.path, self.learning_rate_factor)
        return Done(
            f"it goes back to the policy after {best.epochs} epochs in {best.path}, step sizes times "
            f"{self.learning_rate_factor:g} ({restores + 1} of {self.at_most})",
            restored=True,
        )


def go_back(trainer: Trainer, agent: LightningModule, path: str, learning_rate_factor: float) -> None:
    """Gives the agent the weights, and its optimizers the state, of a checkpoint; the schedule of step sizes goes on.

    Args:
        trainer: of the run.
        agent: in training.
        path: of the checkpoint.
        learning_rate_factor: the step sizes of now, and those that they rise to, are multiplied by it.
    """
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    agent.load_state_dict(checkpoint["state_dict"])
    rates = [
        [_rates(group, learning_rate_factor) for group in optimizer.param_groups] for optimizer in trainer.optimizers
    ]
    trainer.strategy.load_optimizer_state_dict(checkpoint)
    for optimizer, groups in zip(trainer.optimizers, rates, strict=True):
        for group, own in zip(optimizer.param_groups, groups, strict=True):
            group.update(own)
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, LRScheduler):
            config.scheduler.base_lrs = [rate * learning_rate_factor for rate in config.scheduler.base_lrs]


def _rates(group: dict[str, Any], factor: float) -> dict[str, float]:
    """What a schedule reads and writes of a group; `initial_lr` is there where one was made."""
    return {name: group[name] * factor for name in ("lr", "initial_lr") if name in group}
