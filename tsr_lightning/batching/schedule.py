"""The optimizer steps of an epoch: sequences in minibatches, and these in packed micro-batches for every rank."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tsr_lightning.batching.corrections import Correction
from tsr_lightning.batching.packing import Packed, lexicographic_order, pack, shard, split_by_tokens
from tsr_lightning.batching.sequences import TrainingSequence
from tsr_lightning.batching.tensors import Targets
from tsr_lightning.errors import require
from tsr_lightning.rng import Key, Stream

MICRO_BATCH_TOKENS = 16384


@dataclass(frozen=True)
class Updates:
    """Settings of the updates on a rollout.

    Args:
        epochs: passes over the rollout.
        minibatches: optimizer steps per pass; fewer where fewer trajectories have signal. Each has about as many of
            these as the others. Where none has any, there is no step: AdamW would take full steps of what the entropy
            bonus and other regularisers ask for.
        min_trajectories: the fewest trajectories with signal, or search trees under tree credit, per optimizer step. A
            rollout with fewer than twice as many is one step.
        micro_batch_tokens: the most tokens in one forward and backward pass, where shared prefixes count once; a
            minibatch is split into as many micro-batches as that takes. A longer sequence is a micro-batch by itself.
            null: `tsr` chooses by model and memory; without it, 16,384.
        target_kl: an optimizer step is taken only while the KL of the policy to that of the rollout, over the step's
            own tokens (`objectives.terms.binary_kl`), is at most this, in nats a token; the first above it ends the
            epoch's updates. null never does.
        correction: weights for where engine and trainer give a sample different probabilities; null is off.
        reuse_logprobs: take the engine's log-probabilities for those before the updates, which saves a forward pass:
            ratios are then those of the policy to the engine's (verl's `bypass_mode`). `auto` does so where they agree
            to rounding, as ours do in float32: a few trajectories of every rollout decide, and where one differs by
            more the others are computed too, as they are where the setting could not be used.
        mismatch_tolerance: the largest KL in nats a token, over the compared tokens of a rollout, of the engine's
            log-probabilities from the trainer's; past it, or where a few tokens carry the importance ratios, the run
            stops before it trains on them, because an engine that far off may have stale weights. Every trajectory is
            compared where the trainer computes them anyway, else a few. `auto` suits precision and temperature
            (`training/mismatch.py`), null only logs.
    """

    epochs: int = 1
    minibatches: int = 4
    micro_batch_tokens: int | None = MICRO_BATCH_TOKENS
    target_kl: float | None = None
    correction: Correction | None = None
    reuse_logprobs: bool | Literal["auto"] = False
    mismatch_tolerance: float | Literal["auto"] | None = "auto"
    min_trajectories: int = 4

    @property
    def tokens_at_once(self) -> int:
        """`micro_batch_tokens`, or the default where it is null."""
        return MICRO_BATCH_TOKENS if self.micro_batch_tokens is None else self.micro_batch_tokens

    def __post_init__(self) -> None:
        counts = {
            "epochs": self.epochs,
            "minibatches": self.minibatches,
            "min_trajectories": self.min_trajectories,
            "micro_batch_tokens": self.tokens_at_once,
        }
        for key, count in counts.items():
            require(count >= 1, f"data.updates.{key}", count, "give 1 or more")
        remedy = "give a KL in nats a token above 0, such as 0.02, or null for no limit"
        within = self.target_kl is None or 0 < self.target_kl < math.inf
        require(within, "data.updates.target_kl", self.target_kl, remedy)
        tolerance = self.mismatch_tolerance
        remedy = "give a KL in nats a token above 0, such as 0.01 in bfloat16, or auto, or null to stop at none"
        valid = tolerance is None or tolerance == "auto" or tolerance > 0
        require(valid, "data.updates.mismatch_tolerance", tolerance, remedy)
        name = type(self.correction).__name__
        remedy = "under reuse_logprobs engine and trainer are taken to agree, and nothing is to correct; use null"
        require(self.correction is None or self.reuse_logprobs is not True, "data.updates.correction", name, remedy)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch. N counts the sampled ids of all its sequences, one after the other."""

    packed: Packed
    targets: Targets  # [N]
    is_last_micro_batch: bool = True  # of its optimizer step

    def to(self, device: torch.device) -> "Batch":
        return replace(self, packed=self.packed.to(device), targets=self.targets.map(lambda column: column.to(device)))


def schedule(
    sequences: Sequence[TrainingSequence],
    updates: Updates,
    key: Key,
    *,
    rank: int = 0,
    ranks: int = 1,
    at_least: int = 1,
) -> list[list[Batch]]:
    """This rank's micro-batches of every optimizer step of an epoch; no step where no sequence has signal.

    The steps consist of the sequences of all ranks, so they are the same for any number of ranks. Every rank has the
    same number of micro-batches in every step, with dummy sequences where it would have none.

    Args:
        sequences: of all ranks, with targets, in the same order on each.
        updates: the settings.
        key: of the shuffles.
        rank: this process.
        ranks: number of processes.
        at_least: micro-batches per step, where the token limit alone would need fewer.
    """
    steps = [
        _normalised([sequences[i] for i in minibatch])
        for epoch in range(updates.epochs)
        for minibatch in _minibatches(sequences, updates, key.fold_in(Stream.SHUFFLE, epoch))
    ]
    if not steps:
        return []
    packs = [[_packs(part, updates.tokens_at_once) for part in _sharded(step, ranks)] for step in steps]
    count = max([at_least, *(len(part) for step in packs for part in step)])
    return [_batches(_extended(step[rank], count)) for step in packs]


def micro_batches(sequences: Sequence[TrainingSequence], max_tokens: int) -> Iterator[tuple[list[int], Batch]]:
    """Batches of at most `max_tokens`, each with the indices of its sequences: for passes without an update."""
    inputs = [sequence.inputs for sequence in sequences]
    order = lexicographic_order(inputs)
    for part in split_by_tokens([inputs[i] for i in order], max_tokens):
        indices = [order[i] for i in part]
        yield indices, collate([sequences[i] for i in indices])


def collate(sequences: Sequence[TrainingSequence]) -> Batch:
    """One batch of sequences; the targets are zeros where there is no credit yet."""
    packed = pack([(sequence.ids.numpy(), sequence.mask.numpy()) for sequence in sequences])
    targets = [s.targets if s.targets is not None else Targets.zeros(s.trained_tokens) for s in sequences]
    return Batch(packed, Targets.joined(targets))


def _units(sequences: Sequence[TrainingSequence]) -> list[list[int]]:
    """Indices of the sequences that share a search tree; all others are units of their own."""
    units: list[list[int]] = []
    of_tree: dict[int, list[int]] = {}
    for i, sequence in enumerate(sequences):
        if sequence.tree is not None and sequence.tree in of_tree:
            of_tree[sequence.tree].append(i)
            continue
        units.append([i])
        if sequence.tree is not None:
            of_tree[sequence.tree] = units[-1]
    return units


def _minibatches(sequences: Sequence[TrainingSequence], updates: Updates, key: Key) -> list[list[int]]:
    """The indices of shuffled units in minibatches, each with nearly as many units of either kind as the others: with
    signal, at least one, and without."""
    units = _units(sequences)
    shuffled = [units[place] for place in key.generator().permutation(len(units)).tolist()]
    with_signal = [unit for unit in shuffled if any(sequences[i].has_signal for i in unit)]
    without = [unit for unit in shuffled if not any(sequences[i].has_signal for i in unit)]
    if not with_signal:
        return []
    most = _sources([sequences[i] for unit in with_signal for i in unit]) // updates.min_trajectories
    parts = max(1, min(updates.minibatches, most, len(with_signal)))
    while parts > 1 and not _have_sources(with_signal, parts, sequences, updates.min_trajectories):
        parts -= 1
    return [
        [i for kind in (with_signal, without) for unit in _part(kind, part, parts) for i in unit]
        for part in range(parts)
    ]


def _have_sources(units: Sequence[list[int]], parts: int, sequences: Sequence[TrainingSequence], least: int) -> bool:
    """True if every minibatch has at least `least` trajectories, however many units each has."""
    return all(
        _sources([sequences[i] for unit in _part(units, part, parts) for i in unit]) >= least for part in range(parts)
    )


def _part(units: Sequence[list[int]], part: int, parts: int) -> Sequence[list[int]]:
    count = len(units)
    return units[count * part // parts : count * (part + 1) // parts]


def _sources(sequences: Sequence[TrainingSequence]) -> int:
    """Counts the trajectories, or search trees, that the sequences with signal belong to."""
    own = [(each.tree, each.piece if each.tree is None else None) for each in sequences if each.has_signal]
    return len({source for source in own if source != (None, None)}) + own.count((None, None))


def _normalised(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Weights divided so that they sum to (at most) 1 over the optimizer step, as the aggregation defines it."""
    targets = [_targets(sequence) for sequence in sequences]

    def total(weights: Iterable[Tensor]) -> float:
        return sum(float(each.sum()) for each in weights) or 1.0

    divisors = _Divisors(
        total(s.normalizers for s in sequences if s.normalizers is not None),
        total(each.value_weights for each in targets),
        total(each.supervised_weights for each in targets),
        total(each.observation_weights for each in targets),
    )
    return [_divided(sequence, divisors) for sequence in sequences]


def _sharded(sequences: Sequence[TrainingSequence], ranks: int) -> list[list[TrainingSequence]]:
    """Each rank's sequences of a step, about as many tokens on each; a dummy for a rank that would have none.
    They are in lexicographic order, so that those which share a prefix stay together."""
    ordered = [sequences[i] for i in lexicographic_order([sequence.inputs for sequence in sequences])]
    parts = shard([sequence.inputs for sequence in ordered], ranks)
    return [[ordered[i] for i in part] or [_dummy(ordered[0])] for part in parts]


def _packs(ordered: Sequence[TrainingSequence], max_tokens: int) -> list[list[TrainingSequence]]:
    parts = split_by_tokens([sequence.inputs for sequence in ordered], max_tokens)
    return [[ordered[i] for i in part] for part in parts]


def _extended(packs: list[list[TrainingSequence]], count: int) -> list[list[TrainingSequence]]:
    """`count` packs, as every other step has: the largest are halved, then dummies are added."""
    packs = list(packs)
    while len(packs) < count:
        largest = max(packs, key=len)
        if len(largest) > 1:
            packs.remove(largest)
            packs += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
        else:
            packs.append([_dummy(largest[0])])
    return packs


def _batches(packs: Sequence[Sequence[TrainingSequence]]) -> list[Batch]:
    last = len(packs) - 1
    return [replace(collate(sequences), is_last_micro_batch=i == last) for i, sequences in enumerate(packs)]


def _dummy(sequence: TrainingSequence) -> TrainingSequence:
    """Copies a sequence without weight: it is computed and trains nothing."""
    return _divided(sequence, _Divisors(*[math.inf] * 4))


class _Divisors(NamedTuple):
    """What the weights of a step are divided by."""

    policy: float
    value: float
    supervised: float
    observation: float


def _divided(sequence: TrainingSequence, divisors: _Divisors) -> TrainingSequence:
    own = _targets(sequence)
    targets = replace(
        own,
        weights=own.weights / divisors.policy,
        value_weights=own.value_weights / divisors.value,
        supervised_weights=own.supervised_weights / divisors.supervised,
        observation_weights=own.observation_weights / divisors.observation,
    )
    return replace(sequence, targets=targets)


def _targets(sequence: TrainingSequence) -> Targets:
    if sequence.targets is None:
        raise ValueError("the sequence has no credit yet")
    return sequence.targets
