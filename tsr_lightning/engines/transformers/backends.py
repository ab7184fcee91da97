"""What the engine attends with: PyTorch over a decode buffer, or the native kernel over the store itself."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.kv_store import KVStore
from tsr_lightning.modeling.attention import PackedAttention
from tsr_lightning.modeling.segments import Segment


class PrefillAttention(PackedAttention, Protocol):
    """Attends for whole segments: stores their keys, and attends to them and to the prefixes that they extend."""

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, padding and hidden keys included."""
        ...

    def select_queries(self, tokens: NDArray[np.int64]) -> "PrefillAttention":
        """For the last layer, where only the packed `tokens` [N], ascending, have queries."""
        ...


class DecodeAttention(PackedAttention, Protocol):
    """Attends for one token of every branch, step after step. See `modeling.segments.DecodeStep`."""

    def copy(self, groups: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        """Fills columns with tokens that are in the store already."""
        ...

    def keep(self, groups: Sequence[int]) -> None:
        """Drops all other groups; those that stay are renumbered in their order."""
        ...

    def prepare(
        self, groups: Sequence[int], columns: Sequence[int], visible: NDArray[np.bool_], slots: Sequence[int]
    ) -> None:
        """Describes the next step: one token of each branch, branches of a group side by side.

        Args:
            groups: [N] ascending.
            columns: [N] the column of the token itself.
            visible: [N, C] the columns that each branch sees, its own included.
            slots: [N] of the tokens.
        """
        ...

    @property
    def scores_computed(self) -> int:
        """Of the next step, as for `PrefillAttention`."""
        ...

    @property
    def positions(self) -> Tensor:
        """[N] of the next step's tokens in their sequences."""
        ...


class AttentionBackend(Protocol):
    """Attention over one store."""

    def fits(self, groups: int, tokens: int) -> bool:
        """Whether there is memory to decode so many groups of at most so many tokens at once."""
        ...

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> PrefillAttention:
        """For segments that lie packed one after the other; slots [T] of their tokens."""
        ...

    def decode(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> DecodeAttention:
        """For groups with these slots of their prompts, and at most so many columns."""
        ...
