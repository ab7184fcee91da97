"""Sizes that a configuration leaves to the machine: `data.updates.micro_batch_tokens` and the engine's cache."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.cli.estimate import known_setup
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.estimate.chosen_sizes import sized
from tsr_lightning.estimate.here import whole_card
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule


def choose_sizes(
    agent: Agent, data: RolloutDataModule, trainer: Mapping[str, Any], device: torch.device, ranks: int
) -> None:
    """Sets those of the two that are null, by the model and the total memory of the device, and logs them.

    Neither changes a sample; micro-batches of another size round gradients differently. A model whose shape is unknown
    keeps the defaults. Arguments as of `memory_check.check_memory`.
    """
    engine, updates = data.engine, data.updates
    if not isinstance(engine, Transformers) or None not in (engine.kv_cache_mib, updates.micro_batch_tokens):
        return
    setup = known_setup(agent, data, trainer)
    if setup is None:
        return
    card = whole_card(device, ranks)
    chosen = sized(setup, card, ranks)
    data.updates, data.engine = chosen.updates, chosen.engine
    rank_zero_info(
        f"sizes by {card.memory_gib:.0f} GiB of memory: data.updates.micro_batch_tokens "
        f"{chosen.updates.micro_batch_tokens}, data.engine.init_args.kv_cache_mib {chosen.engine.kv_cache_mib}"
    )
