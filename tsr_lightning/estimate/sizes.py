"""Sizes that nobody gave: how many tokens a micro-batch has and how much memory the engine keeps prefixes in, by what a
model needs of a machine's memory."""

from dataclasses import replace

from tsr_lightning.estimate.cards import Card
from tsr_lightning.estimate.memory import GIB, memory, pass_size, wanted_cache_mib
from tsr_lightning.estimate.setup import Setup

_MICRO_BATCHES = tuple(2**power for power in range(17, 9, -1))  # tokens: 131,072 to 1,024
_CACHES = tuple(2**power for power in range(17, 7, -1))  # MiB: 128 GiB to 256 MiB
_SHARE = 0.6  # of the memory: other programs need some, and an estimate may be wrong


def sized(setup: Setup, card: Card, ranks: int = 1) -> Setup:
    """With those sizes chosen that are None."""
    if setup.engine.kv_cache_mib is None:
        setup = _with_cache(setup, card, ranks)
    return _with_micro_batches(setup, card, ranks) if setup.updates.micro_batch_tokens is None else setup


def _with_micro_batches(setup: Setup, card: Card, ranks: int) -> Setup:
    """With the most tokens a micro-batch, a power of two, with which its backward pass fits in 60% of the memory, and
    no more than a minibatch has: the least of them where none does."""
    found = setup
    for tokens in _MICRO_BATCHES:
        found = replace(setup, updates=replace(setup.updates, micro_batch_tokens=tokens))
        needed = memory(found, ranks)
        is_more_than_any = tokens > 2 * pass_size(found, ranks).tokens
        if not is_more_than_any and _fits(needed.always + sum(part.bytes for part in needed.backward), card):
            break
    return found


def _with_cache(setup: Setup, card: Card, ranks: int) -> Setup:
    """With the largest cache, a power of two in MiB, with which a rollout fits in 60% of the memory, and no more than a
    rollout uses: the least of them where none does."""
    wanted, found = wanted_cache_mib(setup, ranks), setup
    for size in _CACHES:
        found = replace(setup, engine=replace(setup.engine, kv_cache_mib=size))
        needed = memory(found, ranks)
        if size < 2 * wanted and _fits(needed.always + sum(part.bytes for part in needed.rollout), card):
            break
    return found


def _fits(needed: int, card: Card) -> bool:
    return needed * (1 + card.fragmentation) + card.context_gib * GIB <= _SHARE * card.memory_gib * GIB
