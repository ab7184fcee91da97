"""AdamW: its settings, parameter groups, learning-rate schedule and gradient clipping. Knows no Trainer."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from tsr_lightning.errors import require
from tsr_lightning.policy.model import Policy

DecayName = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Optimizer:
    """AdamW, with one parameter group for the policy and one for the critic.

    Args:
        learning_rate: of the policy.
        critic_learning_rate: of the value head.
        weight_decay: of both.
        betas: decay rates of AdamW's averages.
        warmup_updates: optimizer steps over which both rates rise linearly from zero.
        decay: how both rates go on after the warm-up: "constant", or down to zero by a straight line ("linear") or
            half a cosine ("cosine") until `decay_updates`.
        decay_updates: optimizer steps, those of the warm-up included, after which a decaying rate is zero and stays so;
            null for "constant". About `trainer.max_epochs` times the steps of an epoch.
    """

    learning_rate: float = 1e-5
    critic_learning_rate: float = 1e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_updates: int = 0
    decay: DecayName = "constant"
    decay_updates: int | None = None

    def __post_init__(self) -> None:
        for key, rate in (("learning_rate", self.learning_rate), ("critic_learning_rate", self.critic_learning_rate)):
            require(
                0 <= rate < math.inf, f"model.optimizer.{key}", rate, "give a finite rate of 0 or more, such as 1e-5"
            )
        remedy = "give a finite number of 0 or more, such as 0.01"
        require(0 <= self.weight_decay < math.inf, "model.optimizer.weight_decay", self.weight_decay, remedy)
        valid = all(0 <= beta < 1 for beta in self.betas)
        require(valid, "model.optimizer.betas", self.betas, "give two numbers from 0 to below 1, such as [0.9, 0.999]")
        require(self.warmup_updates >= 0, "model.optimizer.warmup_updates", self.warmup_updates, "give 0 or more")
        remedy = f"take one of {', '.join(_DECAYS)}"
        require(self.decay in _DECAYS, "model.optimizer.decay", self.decay, remedy)
        key, last = "model.optimizer.decay_updates", self.decay_updates
        if self.decay == "constant":
            require(last is None, key, last, "a constant rate does not end; give null, or decay linear or cosine")
        else:
            remedy = f"a {self.decay} decay ends after more updates than the {self.warmup_updates} of the warm-up"
            require(last is not None and last > self.warmup_updates, key, last, remedy)

    def adamw(self, policy: Policy) -> AdamW:
        """AdamW over the trained weights, in a group for the policy and one for the critic where there is one."""
        critic = [] if policy.value_head is None else list(policy.value_head.parameters())
        groups = [
            {
                "params": [weight for weight in policy.model.parameters() if weight.requires_grad],
                "lr": self.learning_rate,
                "name": "policy",
            },
            {"params": critic, "lr": self.critic_learning_rate, "name": "critic"},
        ]
        trained = [group for group in groups if group["params"]]
        return AdamW(trained, betas=self.betas, weight_decay=self.weight_decay)

    def schedule(self, adamw: AdamW) -> LambdaLR:
        """Warm-up and decay of both learning rates, one step of it per optimizer step."""
        return LambdaLR(adamw, self.factor)

    def take_over(self, saved: "Optimizer", adamw: torch.optim.Optimizer, schedule: LRScheduler) -> None:
        """Gives a resumed AdamW these settings in place of those it was saved with. A rate that was scaled since, as
        by `callbacks.Restore`, stays scaled.

        Args:
            saved: the settings of the run that is resumed.
            adamw: with the state of that run.
            schedule: of its rates.
        """
        rates = {
            "policy": (saved.learning_rate, self.learning_rate),
            "critic": (saved.critic_learning_rate, self.critic_learning_rate),
        }
        for place, group in enumerate(adamw.param_groups):
            before, rate = rates[group["name"]]
            if before != rate:
                scaled = schedule.base_lrs[place] / before if before else 1.0
                schedule.base_lrs[place] = group["initial_lr"] = rate * scaled
            group["lr"] = schedule.base_lrs[place] * self.factor(schedule.last_epoch)
            group["betas"], group["weight_decay"] = self.betas, self.weight_decay

    def factor(self, update: int) -> float:
        """The share of the learning rates that an optimizer step has, counted from 0."""
        warm = min(1.0, (update + 1) / (self.warmup_updates + 1))
        if self.decay_updates is None:
            return warm
        done = (update - self.warmup_updates) / (self.decay_updates - self.warmup_updates)
        return warm * _DECAYS[self.decay](min(1.0, max(0.0, done)))


def clip_by_group(optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    """Clips policy and critic each by its own norm. With a common norm the critic, whose errors are in units of the
    return, would shrink the policy's step: to 0.04 of it in the first updates on Sokoban."""
    for group in optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], max_norm)


# The share of the rate where so much of the decay is done.
_DECAYS = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
