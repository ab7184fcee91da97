"""Sizes that a configuration leaves to the machine: `data.updates.micro_batch_tokens` and the engine's cache."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.errors import ConfigError
from tsr_lightning.estimate.here import whole_card
from tsr_lightning.estimate.sizes import sized
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule


def choose_sizes(
    agent: Agent, data: RolloutDataModule, trainer: Mapping[str, Any], device: torch.device, ranks: int
) -> None:
    """Gives the data module the sizes that are null, by the model and by all memory of the device, and says which. They
    change no sample; micro-batches of other sizes round gradients differently.

    A model of which an estimate knows no shape keeps the defaults.

    Args:
        agent: not set up yet.
        data: not set up yet.
        trainer: the keys and callbacks of the Trainer.
        device: of this rank.
        ranks: that train together; on a CPU they share its memory.
    """
    engine, updates = data.engine, data.updates
    if not isinstance(engine, Transformers) or None not in (engine.kv_cache_mib, updates.micro_batch_tokens):
        return
    whole = whole_card(device)
    card = replace(whole, memory_gib=whole.memory_gib / ranks) if device.type == "cpu" else whole
    epochs = trainer.get("max_epochs")
    try:
        setup, _ = setup_of(agent, data, {**trainer, "max_epochs": max(1, epochs) if isinstance(epochs, int) else 1})
    except ConfigError:
        return
    chosen = sized(setup, card, ranks)
    data.updates, data.engine = chosen.updates, chosen.engine
    rank_zero_info(
        f"sizes by {card.memory_gib:.0f} GiB of memory: data.updates.micro_batch_tokens "
        f"{chosen.updates.micro_batch_tokens}, data.engine.init_args.kv_cache_mib {chosen.engine.kv_cache_mib}"
    )
