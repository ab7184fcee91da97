"""Estimates the pieces of an epoch before its updates: chooses those that the trainer computes, and shares them out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from tsr_lightning.batching.packing import share_out
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import ToEstimate, TrainingSequence, sampled_logprobs
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.objectives.base import Needs
from tsr_lightning.rng import Key, Stream
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.mismatch import mismatch_metrics, within_rounding
from tsr_lightning.trajectory import Piece

# The policy's, critic's and reference's estimates
EstimateFn = Callable[[Sequence[ToEstimate]], list[Estimates]]

CHECKED = 8  # trajectories of a rollout whose log-probabilities are computed in any case, for the comparison


class Estimated(NamedTuple):
    """Estimates of an epoch's pieces, and how far engine and trainer are from each other."""

    estimates: list[Estimates]  # of each piece; the engine's log-probabilities where the trainer computed none
    mismatch: dict[str, float]  # over those that it computed


@dataclass(frozen=True)
class PieceEstimator:
    """Estimates of an epoch's pieces, of which every rank computes a share.

    Args:
        pieces: trajectories and turns of trees, of all ranks, in the same order on each.
        sequences: of each piece.
        estimate: the policy's, critic's and reference's estimates.
        ranks: that share them.
        needs: the objective's.
        updates: the settings; `reuse_logprobs` is `auto` only where the needs allow for it.
        key: of the epoch.
    """

    pieces: Sequence[Piece]
    sequences: Sequence[Sequence[TrainingSequence]]
    estimate: EstimateFn
    ranks: ProcessGroup
    needs: Needs
    updates: Updates
    key: Key

    def __call__(self, read: frozenset[int]) -> Estimated:
        """Estimates what is read, and a sample for the comparison. Where log-probabilities are reused the sample comes
        first, and under `auto` it decides whether the others' are computed.

        Args:
            read: places of the pieces whose estimates credit or loss read.
        """
        needed, sample = needed_logprobs(self.pieces, self.needs) & read, compared(self.pieces, self.key)
        if self.updates.reuse_logprobs is False:
            computed = needed | sample
            found = self._passed(read | computed, computed)
        else:
            computed = sample | (needed - _sampled(self.pieces))
            found = self._passed(computed, computed)
            first = mismatch_metrics([self.pieces[i] for i in found], [*found.values()], range(len(found)))
            if self.updates.reuse_logprobs == "auto" and not within_rounding(first):
                computed |= needed
            found |= self._passed(read - found.keys(), computed)
        estimates = [
            found[i] if i in found else Estimates.of_logprobs(sampled_logprobs(piece))
            for i, piece in enumerate(self.pieces)
        ]
        mismatch = mismatch_metrics(self.pieces, estimates, computed)
        if self.updates.reuse_logprobs is True:  # of the sample too, so that all ratios are to the engine's
            sampled = _sampled(self.pieces)
            estimates = [
                replace(own, logprobs=sampled_logprobs(piece)) if i in sampled else own
                for i, (piece, own) in enumerate(zip(self.pieces, estimates, strict=True))
            ]
        return Estimated(estimates, mismatch)

    def _passed(self, places: frozenset[int], computed: frozenset[int]) -> dict[int, Estimates]:
        """Those at these places; log-probabilities that are not to be computed are the engine's."""
        ordered = sorted(places)
        asked = [ToEstimate(self.pieces[i], self.sequences[i], i in computed) for i in ordered]
        return dict(zip(ordered, shared_estimates(asked, self.estimate, self.ranks, self.needs), strict=True))


def needed_logprobs(pieces: Sequence[Piece], needs: Needs) -> frozenset[int]:
    """Places of the pieces whose estimates an objective needs of the trainer, where it reads them: all, all but
    demonstrations, or none."""
    if needs.values or needs.entropies:
        return frozenset(range(len(pieces)))
    if not needs.logprobs:
        return frozenset()
    return frozenset(range(len(pieces))) if needs.demonstrated_logprobs else _sampled(pieces)


def compared(pieces: Sequence[Piece], key: Key) -> frozenset[int]:
    """Places of a sample of the pieces that the engine sampled, the same for any number of ranks."""
    return frozenset(sorted(_sampled(pieces), key=lambda i: key.fold_in(Stream.COMPARISON, i).bits())[:CHECKED])


def _sampled(pieces: Sequence[Piece]) -> frozenset[int]:
    return frozenset(i for i, piece in enumerate(pieces) if piece.origin.is_sampled)


def shared_estimates(
    asked: Sequence[ToEstimate], estimate: EstimateFn, ranks: ProcessGroup, needs: Needs
) -> list[Estimates]:
    """Estimates of all pieces, in their order. Each rank computes a share of about as many tokens as the others'; a
    prefix that pieces share is computed on few of them."""
    if not asked:
        return []
    if ranks.world_size == 1:
        return estimate(asked)
    passed = [one.sequences if one.computed or needs.reference else () for one in asked]
    shares = share_out([[sequence.inputs for sequence in sequences] for sequences in passed], ranks.world_size)
    own = [each.flat() for each in estimate([asked[i] for i in shares[ranks.rank]])]
    tokens = [one.piece.trained_tokens for one in asked]
    lengths = [(3 + needs.entropies) * count + 1 for count in tokens]
    of_rank = [sum(lengths[i] for i in share) for share in shares]
    gathered = ranks.gather_tensors(torch.cat(own) if own else torch.empty(0), of_rank)
    found = {
        i: Estimates.from_flat(numbers, tokens[i])
        for share, tensor in zip(shares, gathered, strict=True)
        for i, numbers in zip(share, tensor.split([lengths[i] for i in share]), strict=True)
    }
    return [found[i] for i in range(len(asked))]
