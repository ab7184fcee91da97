"""Memory of one card by part. Pure functions of a setup.

A card holds the model, its gradients and AdamW's states all the time: Lightning leaves gradients in place until the
next backward pass. Beside these come, one after the other, the rollout, the backward pass and the optimizer's step;
the engine gives its cache back before the updates, but for a small one on a CPU. Under FSDP2 shards are held, and whole
weights during the rollout alone (`estimate.sharded`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from tsr_lightning.engines.transformers.engine import PREFILL_TOKENS, SAMPLED_LOGITS
from tsr_lightning.estimate.activations import PassSize
from tsr_lightning.estimate.cards import Card
from tsr_lightning.estimate.recurrent_activations import RecurrentActivations, activations_of
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.sharded import NamedBytes, Shards, largest
from tsr_lightning.estimate.weights import (
    ITEMSIZE,
    adapter_parameters,
    critic_bytes,
    plain_bytes,
    quantised_bytes,
    trained_bytes,
)
from tsr_lightning.modeling.buckets import MASK_ELEMENTS
from tsr_lightning.modeling.state_rows import ROW_PADDING

GIB = 2**30
_KEPT = "the engine's cache of the rollout before"
_SAMPLING_BYTES = 16  # per logit: as the model gives them, in float32, by temperature, and their probabilities


@dataclass(frozen=True)
class Part:
    """Some memory, with what it is for."""

    name: str
    bytes: int


@dataclass(frozen=True)
class CardMemory:
    """Memory of one card by phase, without the CUDA context."""

    resident: tuple[Part, ...]
    rollout: tuple[Part, ...]
    backward: tuple[Part, ...]
    step: tuple[Part, ...]

    @property
    def phases(self) -> dict[str, tuple[Part, ...]]:
        return {"rollout": self.rollout, "backward pass": self.backward, "optimizer step": self.step}

    @property
    def always(self) -> int:
        """Bytes that are held all the time."""
        return _sum(self.resident)

    @property
    def peak(self) -> int:
        """Resident memory and the largest phase: what torch.cuda.max_memory_allocated would report."""
        return self.always + max(map(_sum, self.phases.values()))

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: _sum(self.phases[name]))

    def total(self, card: Card) -> float:
        """Bytes that the card has to have: the peak, what fragmentation adds to it, and the context."""
        return self.peak * (1 + card.fragmentation) + card.context_gib * GIB

    def fits(self, card: Card) -> bool:
        return self.total(card) <= card.memory_gib * GIB


def memory(setup: Setup, ranks: int = 1, kept_cache_mib: int = 0) -> CardMemory:
    """The memory of each of `ranks` cards. Under DDP only the micro-batches differ from one card's.

    Args:
        setup: what is run.
        ranks: cards that train together.
        kept_cache_mib: as of `Card`.
    """
    if setup.is_sharded:
        found = _sharded(setup, Shards(setup.units, ranks))
    else:
        found = CardMemory(_resident(setup, ranks), _rollout(setup), _backward(setup, ranks), _step(setup))
    kept = _parts((_KEPT, min(setup.engine.cache_mib + _state_cache_mib(setup), kept_cache_mib) * 2**20))
    return replace(found, backward=found.backward + kept, step=found.step + kept)


def _sharded(setup: Setup, shards: Shards) -> CardMemory:
    """Memory of a card under FSDP2."""
    saved, logits, working = _update_parts(setup, shards.ranks)
    moments = (shards.begin, (saved, logits, *shards.scoring), (saved, working, *shards.layer), shards.end)
    return CardMemory(
        _parts(*shards.resident(setup.spec.dtype), _autocast(setup)),
        (*_parts(*shards.whole), *_rollout(setup)),
        _parts(*largest(moments)),
        _parts(("AdamW's intermediate results", shards.step)),
    )


def largest_cache_mib(setup: Setup, card: Card, ranks: int = 1) -> int:
    """The largest `kv_cache_mib` that fits on the card; below 1 where nothing fits."""
    of_card = memory(setup, ranks, card.kept_cache_mib)
    room = (card.memory_gib - card.context_gib) * GIB / (1 + card.fragmentation)
    others = _sum(of_card.resident) + _sum(of_card.rollout) - setup.engine.cache_mib * 2**20
    return int((room - others) / 2**20)


def pass_size(setup: Setup, ranks: int = 1) -> PassSize:
    """The largest micro-batch: of `micro_batch_tokens`, or less where a minibatch has less, or the longest sequence."""
    found = [PassSize(0, 0, 0)]
    for entries, _ in setup.distinct_entries:
        trained = setup.trained(entries, setup.worst)
        if not trained.packed:
            continue
        minibatch = trained.packed / setup.updates.minibatches / ranks
        tokens = max(trained.longest, min(setup.updates.tokens_at_once, minibatch))
        share = tokens / trained.packed
        sequences = ceil(share * trained.sequences)
        found.append(
            PassSize(
                round(tokens),
                round(share * trained.outputs),
                round(share * trained.unshared),
                round(tokens * ROW_PADDING) + sequences * setup.shape.chunk,
            )
        )
    return max(found, key=lambda size: size.tokens)


def _resident(setup: Setup, ranks: int) -> tuple[Part, ...]:
    shape, spec = setup.shape, setup.spec
    trained = trained_bytes(shape, spec)
    plain = plain_bytes(shape, spec)
    what = f"embeddings, norms and biases in {spec.dtype}" if spec.quantisation else f"weights in {spec.dtype}"
    return _parts(
        ("linear layers in NF4", quantised_bytes(shape, spec)),
        (what, plain),
        ("adapter in float32", 4 * adapter_parameters(shape, spec.adapter)),
        ("gradients", trained),
        ("AdamW's two averages", 2 * trained),
        ("value head, with gradient and averages", 4 * critic_bytes(shape) * setup.has_critic),
        # with an adapter the reference is the policy with the adapter off
        ("copy for the reference", plain * (setup.keeps_reference and spec.adapter is None)),
        ("DDP's copy of the gradients", trained * (ranks > 1)),
        _autocast(setup),
    )


def _autocast(setup: Setup) -> NamedBytes:
    """Copies that autocast keeps to the end of a pass, whole also where the weights are gathered for it."""
    copies = setup.autocast * (setup.spec.adapter is None)
    return "weights cast to bfloat16 by autocast", copies * 2 * setup.shape.parameters


def _rollout(setup: Setup) -> tuple[Part, ...]:
    sampled = min(SAMPLED_LOGITS, setup.engine.max_num_seqs * setup.shape.vocab_size)
    return _parts(
        ("keys, values and decode buffer (kv_cache_mib)", setup.engine.cache_mib * 2**20),
        ("states of recurrent layers (state_cache_mib)", _state_cache_mib(setup) * 2**20),
        ("a pass over prompts, or sampling", max(_prefill(setup), _SAMPLING_BYTES * sampled)),
    )


def _state_cache_mib(setup: Setup) -> int:
    return setup.engine.state_cache_mib if setup.shape.is_recurrent else 0


def _prefill(setup: Setup) -> int:
    """Bytes that a pass over prompts works with: its feed-forward part or its attention, whichever is larger.

    The first has three tensors as wide as the intermediate size; an adapter adds its output, that scaled and the sum,
    and for another dtype than its own float32 a cast of it. Attention has a mask, and again one for the heads that
    share keys. A layer with a state works in padded rows.
    """
    shape, adapter, item = setup.shape, setup.spec.adapter, ITEMSIZE[setup.spec.dtype]
    longest = max(setup.worst.episode.prompt(depth) for depth in range(setup.worst.episode.turns))
    rows = max(PREFILL_TOKENS, longest)
    wide = 3 * item if adapter is None else 4 * item + 8 if item == 2 else 5 * item
    narrow = shape.hidden_size * (4 * item + 4 * (adapter is not None and item == 2))
    sizes = 3 * shape.hidden_size + 3 * shape.query_size + 2 * shape.key_size
    mask = min(MASK_ELEMENTS, rows * longest) * (1 + shape.num_attention_heads // shape.num_key_value_heads)
    layer = 0
    if shape.is_recurrent:
        layer = RecurrentActivations(shape, setup.spec).prefill(round(rows * ROW_PADDING) + shape.chunk)
    return max(layer, rows * (shape.intermediate_size * wide + narrow), (rows * sizes + mask) * item)


def _backward(setup: Setup, ranks: int) -> tuple[Part, ...]:
    saved, logits, working = _update_parts(setup, ranks)
    return _parts(saved, max(working, logits, key=lambda part: part[1]))


def _update_parts(setup: Setup, ranks: int) -> tuple[NamedBytes, NamedBytes, NamedBytes]:
    """Bytes that a backward pass keeps, and that scoring and then a layer's backward pass work with."""
    activations, size = activations_of(setup.shape, setup.spec), pass_size(setup, ranks)
    how = "checkpoints" if setup.spec.gradient_checkpointing else "activations"  # of `pass_size`
    return (
        (how, activations.saved(size)),
        ("logits in float32", activations.logits(size)),
        ("a layer's backward pass", activations.working(size)),
    )


def _step(setup: Setup) -> tuple[Part, ...]:
    """AdamW's update for all weights at once (`foreach`) makes one tensor as large as they are."""
    return _parts(("AdamW's intermediate results", trained_bytes(setup.shape, setup.spec)))


def _parts(*parts: NamedBytes) -> tuple[Part, ...]:
    return tuple(Part(name, int(size)) for name, size in parts if size)


def _sum(parts: Iterable[Part]) -> int:
    return sum(part.bytes for part in parts)
