"""Chooses the sizes that a configuration leaves to the machine, and compares the memory that a run will need with what
is there, before its model loads."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.cli.estimate import known_setup
from tsr_lightning.engines.transformers.spec import KV_CACHE_MIB, Transformers
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.estimate.card_memory import GIB, memory
from tsr_lightning.estimate.cards import Card
from tsr_lightning.estimate.chosen_sizes import sized
from tsr_lightning.estimate.here import card_here, whole_card
from tsr_lightning.estimate.lookup import find_shape
from tsr_lightning.estimate.remedies import remedies
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.policy.spec import Scratch
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule

_SMALL = 0.01  # of the memory: a model whose weights take less fits, and the check would play episodes for a second
_SHOWN = 3  # changes that a sentence names


def check_memory(
    agent: Agent, data: RolloutDataModule, trainer: Mapping[str, Any], device: torch.device, ranks: int
) -> None:
    """Refuses a run whose model and optimizer do not fit, and says so where its rollouts or updates may not.

    Models of which an estimate knows no shape, and other engines, are not looked at.

    Args:
        agent: not set up yet.
        data: not set up yet.
        trainer: the keys and callbacks of the Trainer.
        device: of this rank.
        ranks: that train together; on a CPU they share its memory.

    Raises:
        ConfigError: weights, gradients and the optimizer's averages take more than there is.
    """
    if isinstance(agent.spec.model, Scratch) or not isinstance(data.engine, Transformers):
        return
    card = card_here(device, ranks)
    try:
        shape, _ = find_shape(agent.spec, None)
    except ConfigError:
        return  # an estimate does not know every model
    if 4 * shape.parameters < _SMALL * card.memory_gib * GIB:
        return
    setup = known_setup(agent, data, trainer)
    if setup is None or memory(setup, ranks, card.kept_cache_mib).fits(card):
        return
    sentence = too_large(setup, card, ranks)
    if isinstance(sentence, ConfigError):
        raise sentence
    rank_zero_info(sentence)


def check_cache(data: RolloutDataModule, device: torch.device) -> None:
    """Refuses a cache larger than all memory: a CPU would reserve it, and end the run once it fills.

    The default is never refused, since the models of a machine so small do not fill it. Other engines check their own
    memory. Arguments as of `check_memory`.

    Raises:
        ConfigError: `kv_cache_mib` is more than the device has.
    """
    if not isinstance(data.engine, Transformers):
        return
    card = whole_card(device)
    most = max(int(1024 * card.memory_gib), KV_CACHE_MIB)
    require(
        data.engine.cache_mib <= most,
        "data.engine.init_args.kv_cache_mib",
        data.engine.cache_mib,
        f"{card.name} has {1024 * card.memory_gib:.0f} MiB of memory: give less, or null for a size that fits",
    )


def too_large(setup: Setup, card: Card, ranks: int) -> ConfigError | str:
    """An error where not even the model with its optimizer fits on a card, and a notice where a phase may not."""
    needed, changes = memory(setup, ranks, card.kept_cache_mib), remedies(setup, card, ranks)
    free = f"{card.memory_gib:.1f} GiB of memory are free on {card.name}"
    if needed.always > (card.memory_gib - card.context_gib) * GIB:
        helpful = [f"{one.change} saves {one.saves_always / GIB:.1f} GiB" for one in changes if one.saves_always > 0]
        return ConfigError(
            f"model.policy.model is {setup.spec.model!r}: its weights, gradients and optimizer states take "
            f"{needed.always / GIB:.1f} GiB, and {free}: {'; '.join(helpful) or 'take a smaller model'}"
        )
    fitting = [f"{one.change} fits" for one in changes if one.fits]
    others = [f"{one.change} saves {one.saves / GIB:.1f} GiB" for one in changes[:_SHOWN]]
    return (
        f"memory: up to {needed.total(card) / GIB:.1f} GiB may be needed in the {needed.peak_phase}, and {free}: "
        f"{'; '.join(fitting or others) or 'take a smaller model'}"
    )


def choose_sizes(
    agent: Agent, data: RolloutDataModule, trainer: Mapping[str, Any], device: torch.device, ranks: int
) -> None:
    """Sets those of the two that are null, by the model and the total memory of the device, and logs them.

    Neither changes a sample; micro-batches of another size round gradients differently. A model whose shape is unknown
    keeps the defaults. Arguments as of `check_memory`.
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
