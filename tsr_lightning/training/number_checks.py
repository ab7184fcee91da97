"""Counts and shares of a data module that cannot be meant."""

from typing import Protocol

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.errors import require
from tsr_lightning.rollout.faults import Faults


class HasNumbers(Protocol):
    """The settings of a `RolloutDataModule` that are looked at."""

    instances_per_epoch: int
    concurrency: int
    sampling: Sampling
    updates: Updates
    context_tokens: int | None
    episode_tokens: int | None
    env_workers: int
    env_processes: bool
    min_valid: float
    faults: Faults


def check_numbers(data: HasNumbers) -> None:
    """Refuses counts of which zero would divide, hang or silently do nothing.

    Raises:
        ConfigError: it names the key.
    """
    counts = {
        "data.instances": data.instances_per_epoch,
        "data.concurrency": data.concurrency,
        "data.sampling.max_response_tokens": data.sampling.max_response_tokens,
        "data.updates.epochs": data.updates.epochs,
        "data.updates.minibatches": data.updates.minibatches,
        "data.updates.micro_batch_tokens": data.updates.tokens_at_once,
    }
    for key, count in counts.items():
        require(count >= 1, key, count, "give 1 or more")
    limits = {"data.context_tokens": data.context_tokens, "data.episode_tokens": data.episode_tokens}
    for key, limit in limits.items():
        require(limit is None or limit >= 1, key, limit, "give 1 or more, or null for no limit of your own")
    remedy = "give 0 to step environments in turn with generation, or the number of them that step beside it"
    require(data.env_workers >= 0, "data.env_workers", data.env_workers, remedy)
    remedy = "give a share of a rollout's responses from 0 (never stops) to 1"
    require(0 <= data.min_valid <= 1, "data.min_valid", data.min_valid, remedy)
    data.faults.check_processes(data.env_processes)
    temperature = data.sampling.temperature
    remedy = "log-probabilities are defined above 0 only; for greedy play set an evaluation's temperature to 0"
    require(temperature > 0, "data.sampling.temperature", temperature, remedy)


def check_held_out(instances: int) -> None:
    """Refuses a command line that holds out no instance, since a validation of none says nothing."""
    remedy = "hold out at least 1, and set data.evaluations to [] to skip evaluation"
    require(instances > 0, "data.held_out.instances", instances, remedy)
