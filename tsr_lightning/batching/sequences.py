"""Makes training sequences from trajectories and turns of trees, without and with credit.

Consecutive turns become one sequence while each prompt extends the previous prompt and response; the mask is true at
the sampled ids alone. A turn whose context was cut starts a new sequence. Credit is assigned to whole trajectories
before, so the split does not change it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.batching.packing import model_inputs
from tsr_lightning.batching.tensors import Credit, Estimates, Targets
from tsr_lightning.trajectory import Piece


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """A sequence of token ids, of which N were sampled and are trained."""

    ids: Tensor  # [L] int64
    mask: Tensor  # [L] bool, true at the N sampled ids
    turn_starts: Tensor  # [N] float, 1 at the first sampled id of each turn
    targets: Targets | None = None  # [N]; None before credit
    normalizers: Tensor | None = None  # [N] what each token adds to the divisor of its optimizer step
    tree: int | None = None  # sequences of one search tree, which share prefixes, stay in one minibatch
    piece: int | None = None  # number of the trajectory or turn that it is a part of; None: one of its own
    has_signal: bool = True  # an outcome moves the policy here: regularisers alone make no optimizer step

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        return int(self.mask.sum())

    @property
    def inputs(self) -> NDArray[np.int64]:
        """Model input; the last sampled id is only a target."""
        return model_inputs(self.ids.numpy(), self.mask.numpy())


class ToEstimate(NamedTuple):
    """A trajectory or a turn of a tree, and its training sequences, to compute `Estimates` of."""

    piece: Piece
    sequences: Sequence[TrainingSequence]  # of the piece
    computed: bool = True  # False: its log-probabilities are taken from its turns, where the engine gave them


def training_sequences(piece: Piece) -> list[TrainingSequence]:
    """Training sequences of a trajectory or a turn; their masks, one after the other, cover its sampled ids in
    order."""
    parts: list[tuple[list[int], list[bool], list[float]]] = []
    for turn in piece.turns:
        if not parts or turn.prompt[: len(parts[-1][0])] != tuple(parts[-1][0]):
            parts.append(([], [], []))
        ids, mask, turn_starts = parts[-1]
        added = turn.prompt[len(ids) :]
        ids += [*added, *turn.response]
        mask += [False] * len(added) + [True] * len(turn.response)
        turn_starts += [float(i == 0) for i in range(len(turn.response))]
    return [
        TrainingSequence(torch.tensor(ids), torch.tensor(mask), torch.tensor(turn_starts))
        for ids, mask, turn_starts in parts
    ]


def with_credit(
    sequences: Sequence[TrainingSequence],
    estimates: Estimates,
    credit: Credit,
    quantities: Mapping[str, Tensor] = MappingProxyType({}),
    *,
    tree: int | None = None,
    piece: int | None = None,
    teaches: bool = True,
) -> list[TrainingSequence]:
    """The sequences of a trajectory or a turn, each with its part of the credit; those without any weight are left out.

    Args:
        sequences: of the piece.
        estimates: of its tokens.
        credit: of its tokens.
        quantities: further ones of its tokens by name, beside those of the credit.
        tree: number of the search trees that it belongs to, if it does.
        piece: its number in the rollout.
        teaches: True if its outcome may move the policy; see `objectives/signal.py`.
    """
    targets = Targets(
        old_logprobs=estimates.logprobs,
        old_values=estimates.values,
        reference_logprobs=estimates.reference_logprobs,
        advantages=credit.advantages,
        value_targets=credit.value_targets,
        weights=credit.weights,
        value_weights=credit.value_weights,
        supervised_weights=credit.supervised_weights,
        turn_starts=torch.cat([sequence.turn_starts for sequence in sequences]),
        quantities={**quantities, **credit.quantities},
    )

    def credited(sequence: TrainingSequence, own: Targets, normalizers: Tensor) -> TrainingSequence:
        has_signal = bool(own.supervised_weights.any()) or (
            teaches and bool(((own.weights != 0) & (own.advantages != 0)).any())
        )
        return replace(
            sequence,
            targets=own,
            normalizers=normalizers,
            tree=tree,
            piece=piece,
            has_signal=has_signal,
        )

    if len(sequences) == 1:  # as with every response of a tree: nothing has to be cut
        return [credited(sequences[0], targets, credit.normalizers)] if _has_weight(targets) else []
    parts = []
    start = 0
    for sequence in sequences:
        span = slice(start, start + sequence.trained_tokens)
        start = span.stop
        part = targets.map(itemgetter(span))
        if _has_weight(part):
            parts.append(credited(sequence, part, credit.normalizers[span]))
    return parts


def _has_weight(targets: Targets) -> bool:
    return any(weights.any() for weights in (targets.weights, targets.value_weights, targets.supervised_weights))


def sampled_logprobs(piece: Piece) -> Tensor:
    """Log-probabilities [N] with which the engine sampled the tokens; 0 in a demonstration."""
    return torch.tensor([logprob for turn in piece.turns for logprob in turn.behaviour_logprobs])


OF_TURNS: Mapping[str, Callable[[Piece], Tensor]] = {"behaviour_logprobs": sampled_logprobs}


def quantities_of(piece: Piece, names: Sequence[str]) -> dict[str, Tensor]:
    """Makes the named quantities that turns have; an objective's credit gives the others."""
    return {name: OF_TURNS[name](piece) for name in names if name in OF_TURNS}
