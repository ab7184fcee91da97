"""Suggests which keys to change where a configuration does not fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsr_lightning.estimate.caches import least_state_mib
from tsr_lightning.estimate.card_memory import memory, pass_size
from tsr_lightning.estimate.cards import Card
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.policy.spec import NF4, LoRA


@dataclass(frozen=True)
class Remedy:
    """A change of one key."""

    change: str  # key and value
    saves: float  # bytes on the card
    saves_always: float  # of these, bytes that are held all the time
    fits: bool  # with this change alone


def remedies(setup: Setup, card: Card, ranks: int) -> list[Remedy]:
    """Returns the changes that save memory, the largest saving first."""
    before = memory(setup, ranks, card.kept_cache_mib)
    total = before.total(card)
    found = []
    for change, changed in _changes(setup, ranks):
        after = memory(changed, ranks, card.kept_cache_mib)
        saves = total - after.total(card)
        if saves > 0:
            found.append(Remedy(change, saves, before.always - after.always, after.fits(card)))
    return sorted(found, key=lambda remedy: -remedy.saves)


def _changes(setup: Setup, ranks: int) -> Iterator[tuple[str, Setup]]:
    spec = setup.spec
    if not spec.gradient_checkpointing:
        yield (
            "model.policy.gradient_checkpointing true",
            replace(setup, spec=replace(spec, gradient_checkpointing=True)),
        )
    if spec.dtype == "float32" and spec.adapter is not None:  # AdamW hardly moves bfloat16 weights
        yield "model.policy.dtype bfloat16", replace(setup, spec=replace(spec, dtype="bfloat16"))
    if ranks > 1 and not setup.is_sharded and spec.quantisation is None:
        yield "trainer.strategy fsdp2", replace(setup, is_sharded=True)
    if spec.adapter is None:
        yield "model.policy.adapter of rank 16", replace(setup, spec=replace(spec, adapter=LoRA()))
    if spec.adapter is None and not setup.is_sharded:  # 4-bit weights cannot be sharded
        yield (
            "model.policy.adapter of rank 16 and model.policy.quantisation NF4",
            replace(setup, spec=replace(spec, adapter=LoRA(), quantisation=NF4())),
        )
    elif spec.quantisation is None and not setup.is_sharded:
        yield "model.policy.quantisation NF4", replace(setup, spec=replace(spec, quantisation=NF4()))
    tokens = pass_size(setup, ranks).tokens // 2
    if tokens:
        updates = replace(setup.updates, micro_batch_tokens=tokens)
        yield f"data.updates.micro_batch_tokens {tokens}", replace(setup, updates=updates)
    if setup.engine.cache_mib > 1:
        half = setup.engine.cache_mib // 2
        engine = replace(setup.engine, kv_cache_mib=half)
        yield f"data.engine.init_args.kv_cache_mib {half}", replace(setup, engine=engine)
    half = setup.engine.state_cache_mib // 2
    if setup.shape.is_recurrent and half >= least_state_mib(setup):
        engine = replace(setup.engine, state_cache_mib=half)
        yield f"data.engine.init_args.state_cache_mib {half}", replace(setup, engine=engine)
