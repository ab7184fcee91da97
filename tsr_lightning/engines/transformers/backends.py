"""What the engine attends with, behind one small interface: PyTorch on a workbench, or our kernel in the store."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.kv_store import KVStore
from tsr_lightning.modeling.attention import PackedAttention, Segment


class PrefillAttention(PackedAttention, Protocol):
    """Reads whole segments: their keys go to the store, and are attended to with those of the prefixes they extend."""

    @property
    def scored(self) -> int:
        """Products of a query and a key in each head, padding and what is hidden included."""
        ...

    def select_queries(self, reads: NDArray[np.int64]) -> "PrefillAttention":
        """For the last layer, where only the packed tokens `reads` [N], ascending, have queries."""
        ...


class DecodeAttention(PackedAttention, Protocol):
    """Reads one token of every branch, pass after pass. A family is a prompt and the branches of its responses.

    A family has a column for every token that any of its branches has said. A branch sees the prompt and the columns
    of its own past, so siblings share the prompt without copying it.
    """

    def copy(self, families: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        """Columns of what was computed elsewhere."""
        ...

    def keep(self, families: Sequence[int]) -> None:
        """Drops all other families; those that stay are renumbered in their order."""
        ...

    def expect(
        self, families: Sequence[int], columns: Sequence[int], seen: NDArray[np.bool_], slots: Sequence[int]
    ) -> None:
        """What the next pass is over: one token of each branch, branches of a family side by side.

        Args:
            families: [N] ascending.
            columns: [N] the column of the token itself.
            seen: [N, C] which columns each branch sees, its own included.
            slots: [N] of the tokens.
        """
        ...

    @property
    def scored(self) -> int:
        """Of the next pass, as in `Prefill`."""
        ...

    @property
    def positions(self) -> Tensor:
        """[N] of the next pass's tokens in their rows."""
        ...


class AttentionBackend(Protocol):
    """Makes readers of one store."""

    def fits(self, families: int, length: int) -> bool:
        """Whether there is memory to extend so many families of at most so many tokens side by side, beside the
        store."""
        ...

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> PrefillAttention:
        """For segments that lie packed one after the other; slots [T] of their tokens."""
        ...

    def steps(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> DecodeAttention:
        """For families with these slots of their prompts, of whose branches none says more than `columns` tokens
        together."""
        ...
