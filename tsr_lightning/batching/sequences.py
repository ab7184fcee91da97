"""From trajectories to what the model is run on: rows, packed batches, and the minibatches of an update.

Consecutive turns whose prompt extends the last one (prompt and response) become one row with a mask over the sampled
ids alone; a turn with a cut context begins a row of its own. Credit lies on whole trajectories, so this changes none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.batching.packing import Packed, cut, in_order, pack, read_part, shard
from tsr_lightning.objectives.base import Credit, Estimates, Targets
from tsr_lightning.rng import Key, Stream
from tsr_lightning.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence of a trajectory."""

    ids: Tensor  # [L] int64
    mask: Tensor  # [L] bool, true at the N sampled ids
    targets: Targets | None = None  # [N]; None before credit
    normalizers: Tensor | None = None  # [N] what each token adds to a step's divisor

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained(self) -> int:
        """N."""
        return int(self.mask.sum())

    @property
    def read(self) -> NDArray[np.int64]:
        """What the model is fed of it: the last sampled id is told, and not fed."""
        return read_part(self.ids.numpy(), self.mask.numpy())


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch. N counts the sampled ids of all rows, row after row."""

    packed: Packed
    targets: Targets  # [N]
    is_last_micro_batch: bool = True  # the last micro-batch of an optimizer step

    def to(self, device: torch.device) -> "Batch":
        targets = _mapped(self.targets, lambda part: part.to(device))
        return replace(self, packed=self.packed.to(device), targets=targets)


def rows_of(trajectory: Trajectory) -> list[TrainingSequence]:
    """The rows of a trajectory; their masks, one after the other, cover its sampled ids in order."""
    rows: list[TrainingSequence] = []
    ids: list[int] = []
    mask: list[bool] = []
    for turn in trajectory.turns:
        if tuple(ids) != turn.prompt[: len(ids)] or not ids:
            rows += _closed(ids, mask)
            ids, mask = [], []
        _extend(ids, mask, turn)
    return rows + _closed(ids, mask)


def _extend(ids: list[int], mask: list[bool], turn: Turn) -> None:
    fresh = turn.prompt[len(ids) :]
    ids += [*fresh, *turn.response]
    mask += [False] * len(fresh) + [True] * len(turn.response)


def _closed(ids: list[int], mask: list[bool]) -> list[TrainingSequence]:
    return [TrainingSequence(torch.tensor(ids), torch.tensor(mask))] if ids else []


def with_credit(rows: Sequence[TrainingSequence], estimates: Estimates, credit: Credit) -> list[TrainingSequence]:
    """The rows of one trajectory with their part of its credit; rows that would train nothing are left out."""
    whole = Targets(
        logprobs=estimates.logprobs,
        values=estimates.values,
        reference=estimates.reference,
        advantages=credit.advantages,
        value_targets=credit.value_targets,
        weights=credit.weights,
        value_weights=credit.value_weights,
    )
    filled = []
    start = 0
    for row in rows:
        here = slice(start, start + row.trained)
        part = _mapped(whole, itemgetter(here))
        start = here.stop
        if part.weights.any() or part.value_weights.any():
            filled.append(replace(row, targets=part, normalizers=credit.normalizers[here]))
    return filled


@dataclass(frozen=True)
class Updates:
    """How a rollout is trained on.

    Args:
        epochs: passes over the rollout.
        minibatches: optimizer steps per pass.
        micro_batch_tokens: the most tokens in one forward and backward pass, where prefixes that rows share count once;
            a minibatch is cut into as many micro-batches as that takes. A single longer row still goes through alone.
        target_kl: no further optimizer steps in an epoch once the KL to the rollout's policy has passed this; acts one
            step late, because Lightning fetches a step ahead. null never stops.
    """

    epochs: int = 1
    minibatches: int = 4
    micro_batch_tokens: int = 16384
    target_kl: float | None = None


def schedule(
    rows: Sequence[TrainingSequence], updates: Updates, key: Key, *, rank: int = 0, ranks: int = 1, at_least: int = 1
) -> list[list[Batch]]:
    """This rank's micro-batches of every optimizer step of an epoch.

    The steps are made of the rows of all ranks, so they are the same however many ranks share them; every rank has the
    same number of micro-batches in every step, with weightless rows where it would have none.

    Args:
        rows: of all ranks, with targets, in the same order on each.
        updates: the settings.
        key: names the shuffles.
        rank: this process.
        ranks: of how many.
        at_least: micro-batches per step, where the token budget alone would need fewer.
    """
    steps = [
        _normalised([rows[i] for i in part])
        for epoch in range(updates.epochs)
        for part in _parts(len(rows), updates.minibatches, key.fold_in(Stream.SHUFFLE, epoch))
    ]
    packs = [[_packs(mine, updates.micro_batch_tokens) for mine in _sharded(step, ranks)] for step in steps]
    count = max([at_least, *(len(mine) for step in packs for mine in step)])
    return [_batches(_split(step[rank], count)) for step in packs]


def collate(rows: Sequence[TrainingSequence]) -> Batch:
    """Rows, whether they have targets or not -> one batch."""
    packed = pack([(row.ids.numpy(), row.mask.numpy()) for row in rows])
    targets = [row.targets if row.targets is not None else _blank(row.trained) for row in rows]
    columns = {f.name: torch.cat([getattr(part, f.name) for part in targets]) for f in fields(Targets)}
    return Batch(packed, Targets(**columns))


def batched(rows: Sequence[TrainingSequence], micro_batch_tokens: int) -> Iterator[tuple[list[int], Batch]]:
    """Batches within the token budget, each with the indices of its rows: for passes without an update."""
    read = [row.read for row in rows]
    order = in_order(read)
    for part in cut([read[i] for i in order], micro_batch_tokens):
        indices = [order[place] for place in part]
        yield indices, collate([rows[i] for i in indices])


def _parts(count: int, parts: int, key: Key) -> list[list[int]]:
    """A shuffle of `count` rows in `parts` nearly equal parts, none of them empty."""
    order = key.generator().permutation(count).tolist()
    parts = min(parts, count)
    return [order[count * i // parts : count * (i + 1) // parts] for i in range(parts)]


def _normalised(rows: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Weights that sum to (at most) one over the step: what makes an aggregation a token's, a sequence's, a
    constant's mean."""
    normalizers = sum(float(row.normalizers.sum()) for row in rows if row.normalizers is not None)
    values = sum(float(_targets(row).value_weights.sum()) for row in rows)
    return [
        replace(
            row,
            targets=replace(
                _targets(row),
                weights=_targets(row).weights / (normalizers or 1.0),
                value_weights=_targets(row).value_weights / (values or 1.0),
            ),
        )
        for row in rows
    ]


def _sharded(rows: Sequence[TrainingSequence], ranks: int) -> list[list[TrainingSequence]]:
    """Each rank's rows of a step, about as many tokens on each; one weightless row where there are fewer than ranks.
    Rows stay in the order of their ids, so that those which share a prefix stay together."""
    ordered = _ordered(rows)
    parts = shard([row.read for row in ordered], ranks)
    return [[ordered[i] for i in part] or [_dummy(ordered[0])] for part in parts]


def _ordered(rows: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    return [rows[i] for i in in_order([row.read for row in rows])]


def _packs(ordered: Sequence[TrainingSequence], micro_batch_tokens: int) -> list[list[TrainingSequence]]:
    return [[ordered[i] for i in part] for part in cut([row.read for row in ordered], micro_batch_tokens)]


def _split(packs: list[list[TrainingSequence]], count: int) -> list[list[TrainingSequence]]:
    """As many packs as every other step has: the largest are halved, and a weightless row makes up the rest."""
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
    batches = [collate(pack) for pack in packs]
    return [replace(batch, is_last_micro_batch=i == len(batches) - 1) for i, batch in enumerate(batches)]


def _dummy(row: TrainingSequence) -> TrainingSequence:
    targets = _targets(row)
    nothing = torch.zeros_like(targets.weights)
    return replace(row, targets=replace(targets, weights=nothing, value_weights=nothing))


def _targets(row: TrainingSequence) -> Targets:
    if row.targets is None:
        raise ValueError("a row has no credit yet")
    return row.targets


def _blank(count: int) -> Targets:
    return Targets(*(torch.zeros(count) for _ in fields(Targets)))


def _mapped(targets: Targets, change: Callable[[Tensor], Tensor]) -> Targets:
    return Targets(**{f.name: change(getattr(targets, f.name)) for f in fields(Targets)})
