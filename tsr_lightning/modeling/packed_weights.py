"""Weights as oneDNN lays them out for its products: the same numbers and the same sums, at full speed with fewer rows.

With 32 rows a product of SmolLM2's width takes 0.75 of the time, with 512 rows 0.95. So a rollout, whose steps have a
row for each response, keeps such copies, and an update does not.
"""

import torch
from torch import Tensor

_ROWS = 64  # that a layout is made for; with others its products are as fast as with their own


class PackedWeights:
    """Copies, each made when its weight is first multiplied with. Who changes a weight has to call `clear`."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # by id: the weight, which keeps its id taken, and its copy

    def of(self, weight: Tensor) -> Tensor:
        """The copy of a weight [O, I], for `mkldnn::_linear_pointwise` alone."""
        known = self._copies.get(id(weight))
        if known is None:
            copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
            known = self._copies[id(weight)] = (weight, copy)
        return known[1]

    def clear(self) -> None:
        """Frees all copies."""
        self._copies = {}
