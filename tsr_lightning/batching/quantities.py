"""Further quantities per token that a loss can ask for by name (`Needs.quantities`), made from the turns alone."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tsr_lightning.trajectory import Piece


def sampled_logprobs(piece: Piece) -> Tensor:
    """Log-probabilities [N] with which the engine sampled the tokens; 0 in a demonstration."""
    return torch.tensor([logprob for turn in piece.turns for logprob in turn.behaviour_logprobs])


OF_TURNS: Mapping[str, Callable[[Piece], Tensor]] = {"behaviour_logprobs": sampled_logprobs}


def quantities_of(piece: Piece, names: Sequence[str]) -> dict[str, Tensor]:
    """Makes the named quantities that turns have; an objective's credit gives the others."""
    return {name: OF_TURNS[name](piece) for name in names if name in OF_TURNS}
