"""Weights as oneDNN lays them out for its products: the same numbers and the same sums, at full speed with fewer rows.

With 32 rows a product of SmolLM2's width takes 0.75 of the time, with 512 rows 0.95. So a rollout, whose steps have a
row for each response, keeps such copies, and an update does not.
"""

import torch
from torch import Tensor

from tsr_lightning.free_memory import free_bytes

_ROWS = 64  # that a layout is made for; with others its products are as fast as with their own
_SHARE = 0.25  # of the free memory, that copies may take


class PackedWeights:
    """Copies, each made when its weight is first multiplied with, as long as a quarter of the memory that was free
    holds them; other weights are read where they are. Who changes a weight has to call `clear`."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # by id: the weight, which keeps its id taken, and its copy
        self._room: float | None = None  # bytes that are left for copies

    def __len__(self) -> int:
        return len(self._copies)

    def of(self, weight: Tensor) -> Tensor:
        """The copy of a weight [O, I], for `mkldnn::_linear_pointwise` alone; the weight itself where there is none."""
        known = self._copies.get(id(weight))
        if known is not None:
            return known[1]
        if self._room is None:
            self._room = _SHARE * free_bytes()
        if weight.nbytes > self._room:
            return weight
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        self._copies[id(weight)] = weight, copy
        self._room -= weight.nbytes
        return copy

    def clear(self) -> None:
        """Frees all copies."""
        self._copies, self._room = {}, None
