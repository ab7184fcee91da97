"""Makes training sequences from trajectories and turns of trees, without and with credit.

Consecutive turns become one sequence while each prompt extends the previous prompt and response; the mask is true at
the sampled ids alone. A turn whose context was cut starts a new sequence. Credit is assigned to whole trajectories
before, so the split does not change it. Where observations are trained, each is in the sequence of the response that it
answers: where the next prompt does not show that response, it is appended.
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
from tsr_lightning.trajectory import Message, Piece, Turn

# The ids that follow the last turn's response, given all turns up to it and the messages that answer it
Following = Callable[[Sequence[Turn], Sequence[Message]], Sequence[int]]

_ROUNDING = 1e-8  # advantages up to this are what rounding leaves of equal returns


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


def training_sequences(piece: Piece, following: Following | None = None) -> list[TrainingSequence]:
    """Training sequences of a trajectory or a turn; their masks, one after the other, cover its sampled ids in
    order.

    Args:
        piece: the trajectory or turn.
        following: gives what each sequence ends with, beyond its last response; None: it ends with the response.
    """
    parts: list[tuple[list[int], list[bool], list[float]]] = []

    def finish(turns: Sequence[Turn], messages: Sequence[Message]) -> None:
        """Ends the last part with what follows the last of its turns."""
        if following is not None:
            added = following(turns, messages)
            parts[-1][0].extend(added)
            parts[-1][1].extend([False] * len(added))

    for i, turn in enumerate(piece.turns):
        if not parts or turn.prompt[: len(parts[-1][0])] != tuple(parts[-1][0]):
            if parts:
                finish(piece.turns[:i], turn.messages)
            parts.append(([], [], []))
        ids, mask, turn_starts = parts[-1]
        added = turn.prompt[len(ids) :]
        ids += [*added, *turn.response]
        mask += [False] * len(added) + [True] * len(turn.response)
        turn_starts += [float(place == 0) for place in range(len(turn.response))]
    finish(piece.turns, piece.final_messages)
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
    observations: bool = False,
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
        observations: train the tokens of its observations too.
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
        observation_weights=torch.zeros_like(credit.weights),
        quantities={**quantities, **credit.quantities},
    )

    def credited(sequence: TrainingSequence, own: Targets, normalizers: Tensor) -> TrainingSequence:
        has_signal = bool(own.supervised_weights.any()) or (
            teaches and bool(((own.weights != 0) & (own.advantages.abs() > _ROUNDING)).any())
        )
        with_own = replace(
            sequence,
            targets=own,
            normalizers=normalizers,
            tree=tree,
            piece=piece,
            has_signal=has_signal,
        )
        return with_observations(with_own, own, normalizers) if observations else with_own

    if len(sequences) == 1:  # as with every response of a tree: nothing has to be cut
        parts = [credited(sequences[0], targets, credit.normalizers)]
        return [part for part in parts if _has_weight(part)]
    parts = []
    start = 0
    for sequence in sequences:
        span = slice(start, start + sequence.trained_tokens)
        start = span.stop
        parts.append(credited(sequence, targets.map(itemgetter(span)), credit.normalizers[span]))
    return [part for part in parts if _has_weight(part)]


def with_observations(sequence: TrainingSequence, targets: Targets, normalizers: Tensor) -> TrainingSequence:
    """The sequence with all ids after its first response as trained tokens: those that nobody sampled are observations,
    with the chat template's around them, of weight 1 each in `observation_weights` and of none elsewhere.

    Their other targets are those of the sampled token before them, so that every figure of a loss is finite.

    Args:
        sequence: of N sampled ids.
        targets: of these.
        normalizers: [N] of these.
    """
    mask = sequence.mask.cumsum(0) > 0
    sampled = sequence.mask[mask]
    last = sampled.cumsum(0) - 1
    repeated = targets.map(lambda column: column[last])
    begins = sampled.logical_not() & torch.cat([sampled[:1], sampled[:-1]])
    own = replace(
        repeated,
        weights=repeated.weights * sampled,
        value_weights=repeated.value_weights * sampled,
        supervised_weights=repeated.supervised_weights * sampled,
        turn_starts=repeated.turn_starts * sampled + begins,
        observation_weights=sampled.logical_not().float(),
    )
    has_signal = sequence.has_signal or not bool(sampled.all())
    return replace(sequence, mask=mask, targets=own, normalizers=normalizers[last] * sampled, has_signal=has_signal)


def _has_weight(sequence: TrainingSequence) -> bool:
    own = sequence.targets
    assert own is not None
    kinds = (own.weights, own.value_weights, own.supervised_weights, own.observation_weights)
    return any(weights.any() for weights in kinds)


def sampled_logprobs(piece: Piece) -> Tensor:
    """Log-probabilities [N] with which the engine sampled the tokens; 0 in a demonstration."""
    return torch.tensor([logprob for turn in piece.turns for logprob in turn.behaviour_logprobs])


OF_TURNS: Mapping[str, Callable[[Piece], Tensor]] = {"behaviour_logprobs": sampled_logprobs}


def quantities_of(piece: Piece, names: Sequence[str]) -> dict[str, Tensor]:
    """Makes the named quantities that turns have; an objective's credit gives the others."""
    return {name: OF_TURNS[name](piece) for name in names if name in OF_TURNS}
