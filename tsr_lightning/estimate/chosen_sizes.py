"""Chooses micro_batch_tokens and kv_cache_mib by the memory of a card."""

from dataclasses import replace

from tsr_lightning.estimate.caches import evaluation_cache_mib, least_cache_mib, wanted_cache_mib
from tsr_lightning.estimate.card_memory import GIB, memory, pass_size
from tsr_lightning.estimate.cards import Card
from tsr_lightning.estimate.setup import Setup

_MICRO_BATCHES = tuple(2**power for power in range(17, 9, -1))  # tokens: 131,072 to 1,024
_CACHES = tuple(2**power for power in range(17, 7, -1))  # MiB: 128 GiB to 256 MiB
_SHARE = 0.6  # of the memory: other programs need some, and an estimate may be wrong


def sized(setup: Setup, card: Card, ranks: int = 1) -> Setup:
    """Replaces micro_batch_tokens and kv_cache_mib where they are None."""
    if setup.engine.kv_cache_mib is None:
        setup = _with_cache(setup, card, ranks)
    return _with_micro_batches(setup, card, ranks) if setup.updates.micro_batch_tokens is None else setup


def _with_micro_batches(setup: Setup, card: Card, ranks: int) -> Setup:
    """Takes the largest power of two whose backward pass fits in 60% of the memory, at most twice a minibatch; 1,024 if
    none fits."""
    found = setup
    for tokens in _MICRO_BATCHES:
        found = replace(setup, updates=replace(setup.updates, micro_batch_tokens=tokens))
        needed = memory(found, ranks, card.kept_cache_mib)
        is_more_than_any = tokens > 2 * pass_size(found, ranks).tokens
        if not is_more_than_any and _fits(needed.always + sum(part.bytes for part in needed.backward), card):
            break
    return found


def _with_cache(setup: Setup, card: Card, ranks: int) -> Setup:
    """Takes the largest power of two in MiB whose rollout fits in 60% of the memory, at most twice what rollouts,
    evaluations and the engine need; 256 if none fits."""
    found = setup
    wanted = max(wanted_cache_mib(setup, ranks), evaluation_cache_mib(setup, ranks), least_cache_mib(setup))
    for size in _CACHES:
        found = replace(setup, engine=replace(setup.engine, kv_cache_mib=size))
        needed = memory(found, ranks, card.kept_cache_mib)
        if size < 2 * wanted and _fits(needed.always + sum(part.bytes for part in needed.rollout), card):
            break
    return found


def _fits(needed: int, card: Card) -> bool:
    return needed * (1 + card.fragmentation) + card.context_gib * GIB <= _SHARE * card.memory_gib * GIB
