"""Reactions to a collapse: Warn, Stop or Restore. Knows nothing of how a collapse is detected."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from torch.optim.lr_scheduler import LRScheduler

from callbacks.best_policy import BestPolicy
from tsr_lightning.errors import require
from tsr_lightning.training import checkpoints
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.lightning_compat import datamodule


class Reaction(NamedTuple):
    """To a collapse."""

    message: str
    restored: bool = False


class OnCollapse(ABC):
    """A reaction to a collapse. Frozen dataclasses derive from it: their fields are the arguments in YAML."""

    needs_best: ClassVar[bool] = False  # whether the best policy's checkpoint is kept for it

    @abstractmethod
    def act(self, trainer: Trainer, agent: LightningModule, best: BestPolicy | None, restores: int) -> Reaction:
        """Called on all ranks at the end of an epoch.

        Args:
            trainer: of the run.
            agent: whose policy has collapsed.
            best: the checkpoint to restore.
            restores: how often this run has restored it before.
        """


@dataclass(frozen=True)
class Warn(OnCollapse):
    """Warns once per collapse, and continues training."""

    def act(self, trainer: Trainer, agent: LightningModule, best: BestPolicy | None, restores: int) -> Reaction:
        return Reaction("training goes on")


@dataclass(frozen=True)
class Stop(OnCollapse):
    """Ends the training after the epoch."""

    def act(self, trainer: Trainer, agent: LightningModule, best: BestPolicy | None, restores: int) -> Reaction:
        trainer.should_stop = True
        return Reaction("training stops")


@dataclass(frozen=True)
class Restore(OnCollapse):
    """Restores the weights and the optimizer's state of the best policy, with smaller learning rates.

    Epochs, updates and the learning rates' schedule continue, so that the next rollout has draws of its own and no
    update is repeated. A collapse with no restore left stops the training.

    Args:
        at_most: restores in a run, over all its resumes.
        learning_rate_factor: the learning rates are multiplied by it at each restore; 1 leaves them.

    Raises:
        ConfigError: for an argument out of its range.
    """

    needs_best: ClassVar[bool] = True
    at_most: int = 3
    learning_rate_factor: float = 0.5

    def __post_init__(self) -> None:
        require(self.at_most >= 1, "Restore.at_most", self.at_most, "give 1 or more, or use Stop")
        factor = self.learning_rate_factor
        require(0 < factor <= 1, "Restore.learning_rate_factor", factor, "give more than 0 and at most 1")

    def act(self, trainer: Trainer, agent: LightningModule, best: BestPolicy | None, restores: int) -> Reaction:
        if best is None:
            trainer.should_stop = True
            return Reaction("there is no checkpoint to restore, and training stops")
        if restores >= self.at_most:
            trainer.should_stop = True
            return Reaction(
                f"training stops after {restores} restores (Restore.at_most); the best policy is in {best.path}"
            )
        restore(trainer, agent, best.path, self.learning_rate_factor)
        return Reaction(
            f"the policy after {best.epochs} epochs is restored from {best.path}, learning rates times "
            f"{self.learning_rate_factor:g} ({restores + 1} of {self.at_most})",
            restored=True,
        )


def restore(trainer: Trainer, agent: LightningModule, path: str, learning_rate_factor: float) -> None:
    """Loads the weights and the optimizers' state of a checkpoint; the learning rates' schedule continues.

    Args:
        trainer: of the run.
        agent: in training.
        path: of the checkpoint.
        learning_rate_factor: the current learning rates, and the schedule's base rates, are multiplied by it.
    """
    checkpoint = checkpoints.load(Path(path))
    agent.load_state_dict(checkpoint["state_dict"])
    data = datamodule(trainer)
    if isinstance(data, RolloutDataModule):
        data.discard_pending()  # those of the collapsed policy
    settings = [
        [_settings(group, learning_rate_factor) for group in optimizer.param_groups] for optimizer in trainer.optimizers
    ]
    trainer.strategy.load_optimizer_state_dict(checkpoint)
    for optimizer, groups in zip(trainer.optimizers, settings, strict=True):
        for group, own in zip(optimizer.param_groups, groups, strict=True):
            group.update(own)
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, LRScheduler):
            config.scheduler.base_lrs = [rate * learning_rate_factor for rate in config.scheduler.base_lrs]


def _settings(group: dict[str, Any], factor: float) -> dict[str, Any]:
    """A parameter group's settings, with the rates that a schedule uses scaled; `initial_lr` is there where one was
    made."""
    rates = {name: group[name] * factor for name in ("lr", "initial_lr") if name in group}
    return {name: value for name, value in group.items() if name != "params"} | rates
