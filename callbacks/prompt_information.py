"""Mutual information of prompts and responses. It falls in template collapse, where every prompt gets the same varied
answers and entropy stays high (RAGEN-2, arXiv 2604.06268)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from tsr_lightning.errors import require
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.estimates import logprobs_behind
from tsr_lightning.trajectory import Group, Origin, Turn

CONDITIONAL_ENTROPY = "rollout/sampled/conditional_entropy"
INFORMATION = "rollout/sampled/prompt_information"


class Information(NamedTuple):
    """Entropy and mutual information, in nats a response."""

    conditional_entropy: float  # H(Z|X) of responses Z, given their prompts X
    prompt_information: float  # I(X;Z), at most the logarithm of the number of prompts


class PromptInformation(Callback):
    """Logs the mutual information of prompts and sampled responses at each rollout, by packed passes over every
    response behind every prompt, each of at most `data.updates.micro_batch_tokens`.

    The prompts are the first ones of different instances, those that a filter drops too: in a collapse these are all.
    The policy is the one before the epoch's updates. Every rank makes the same passes over the turns of all, with whole
    weights, so that none waits for another.

    Args:
        prompts: the most prompts that are compared; the passes have their number squared of responses.
        every_n_epochs: rollouts between two figures.
    """

    def __init__(self, prompts: int = 16, every_n_epochs: int = 1) -> None:
        super().__init__()
        require(prompts >= 2, "PromptInformation.prompts", prompts, "give 2 or more, which can be compared")
        require(every_n_epochs >= 1, "PromptInformation.every_n_epochs", every_n_epochs, "give 1 or more")
        self.prompts = prompts
        self.every_n_epochs = every_n_epochs
        self._found: dict[str, float] = {}  # of the last rollout that was measured

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not compat.epochs_at_rollout(trainer):  # a run of its own; a checkpoint is loaded after this
            self._found = {}

    def state_dict(self) -> dict[str, Any]:
        return {"found": dict(self._found)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._found = dict(state_dict["found"])

    def on_rollout(self, trainer: Trainer, agent: Agent, groups: Sequence[Group]) -> None:
        epochs = compat.epochs_at_rollout(trainer)
        turns = distinct_turns(groups)[: self.prompts]
        if epochs % self.every_n_epochs == 0 and len(turns) > 1:
            with compat.training_precision(trainer):
                found = information(logprobs_behind_every_prompt(agent, turns, _micro_batch_tokens(trainer)))
            self._found = {CONDITIONAL_ENTROPY: found.conditional_entropy, INFORMATION: found.prompt_information}
            compat.log_figures(trainer, self._found, epochs=epochs)

    def of_training(self) -> dict[str, float]:
        """As of `measurement.TellsTraining`."""
        return {tag.rpartition("/")[2]: value for tag, value in self._found.items()}


def information(logprobs: Tensor) -> Information:
    """Entropy and mutual information of responses and prompts.

    Args:
        logprobs: [B, B], log p(response i | prompt j); each response was sampled behind the prompt of its own number.
    """
    own = logprobs.diagonal()
    marginal = logprobs.logsumexp(1) - math.log(len(logprobs))
    return Information(float(-own.mean()), float((own - marginal).mean()))


def distinct_turns(groups: Sequence[Group]) -> list[Turn]:
    """The first turn of a sampled trajectory of each instance, with prompts that all differ."""
    sampled = [next((t for t in group.trajectories if t.origin is Origin.SAMPLED), None) for group in groups]
    turns = [trajectory.turns[0] for trajectory in sampled if trajectory is not None and trajectory.turns]
    return list({turn.prompt: turn for turn in turns}.values())


def logprobs_behind_every_prompt(agent: Agent, turns: list[Turn], micro_batch_tokens: int) -> Tensor:
    """[B, B] float64, log p(response i | prompt j), in passes of at most `micro_batch_tokens`."""
    pairs = [(behind.prompt, turn.response) for turn in turns for behind in turns]
    logprobs = logprobs_behind(agent.policy, pairs, agent.temperature, micro_batch_tokens)
    return torch.stack([each.double().sum() for each in logprobs]).view(len(turns), len(turns))


def _micro_batch_tokens(trainer: Trainer) -> int:
    data = compat.datamodule(trainer)
    assert isinstance(data, RolloutDataModule)
    return data.updates.tokens_at_once
