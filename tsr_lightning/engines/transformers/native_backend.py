"""Readers that attend by our kernel, on a CPU: what they read stays where it is, in the store."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.kv_store import KVStore
from tsr_lightning.modeling.attention import ScoreParams, Segment, select_queries
from tsr_lightning.modeling.native.blocks import BITS, MOST, Blocks, blocks_of
from tsr_lightning.modeling.native.kernel import New, attend


class NativeBackend:
    """Readers that need no memory beside the store."""

    def fits(self, families: int, length: int) -> bool:
        return True

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> "NativePrefill":
        return NativePrefill(store, slots, segments)

    def steps(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> "NativeDecode":
        return NativeDecode(store, prompts, columns)


@dataclass(frozen=True)
class NativePrefill:
    """Reads whole segments."""

    store: KVStore
    slots: NDArray[np.int64]  # [T] of the tokens whose keys are new
    segments: Sequence[Segment]
    _blocks: dict[int | None, Blocks] = field(default_factory=dict)

    @property
    def scored(self) -> int:
        return self.blocks(None).scored

    def select_queries(self, reads: NDArray[np.int64]) -> "NativePrefill":
        return NativePrefill(self.store, self.slots, select_queries(self.segments, reads))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        stored, blocks = (self.store.keys[layer], self.store.values[layer]), self.blocks(scores.window)
        return attend(query, *stored, blocks, scores, new=New(self.slots, key, value))

    def blocks(self, window: int | None) -> Blocks:
        if window not in self._blocks:
            self._blocks[window] = blocks_of(self.segments, window)
        return self._blocks[window]


class NativeDecode:
    """Reads one token of every branch. The branches of a family are a block over its prompt; a column is a slot.

    Args:
        store: of the prompts' keys, and where new ones are written.
        prompts: slots of each family's prompt.
        columns: the most tokens that the branches of one family may say together.
    """

    def __init__(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> None:
        self.store = store
        self._prompts = np.concatenate(prompts)
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self._firsts = self._lengths.cumsum() - self._lengths  # of each prompt
        self._columns = np.zeros((len(prompts), columns), dtype=np.int64)  # slots

    def copy(self, families: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        self._columns[families, columns] = slots

    def keep(self, families: Sequence[int]) -> None:
        stay = list(families)
        self._lengths, self._firsts, self._columns = self._lengths[stay], self._firsts[stay], self._columns[stay]

    def expect(
        self, families: Sequence[int], columns: Sequence[int], seen: NDArray[np.bool_], slots: Sequence[int]
    ) -> None:
        self._columns[families, columns] = slots
        self._owner, self._seen = np.asarray(families), seen
        self._positions = self._lengths[self._owner] + seen.sum(axis=1) - 1
        self._slots = np.array(slots, dtype=np.int64)
        self._blocks: dict[int | None, Blocks] = {}

    @property
    def scored(self) -> int:
        return self.blocks(None).scored

    @property
    def positions(self) -> Tensor:
        return torch.from_numpy(self._positions)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        stored, blocks = (self.store.keys[layer], self.store.values[layer]), self.blocks(scores.window)
        return attend(query, *stored, blocks, scores, new=New(self._slots, key, value))

    def blocks(self, window: int | None) -> Blocks:
        """Of the next pass, under a sliding window or none."""
        window = None if window is None or window > self._positions.max() else window
        if window not in self._blocks:
            self._blocks[window] = self._made() if window is None else self._windowed(window)
        return self._blocks[window]

    def _made(self) -> Blocks:
        starts, rank = self._parts()
        width = self._seen.shape[1]
        return self._told(starts, rank, self._seen, self._columns[self._owner[starts], :width], shared=True)

    def _windowed(self, window: int) -> Blocks:
        """As if prompts were columns too, since the branches of a family may be at different positions."""
        starts, rank = self._parts()
        oldest = self._positions - window + 1  # that each sees
        depths = np.arange(max(0, oldest.min()), self._lengths.max())
        lengths = self._lengths[self._owner][:, None]
        prompts = (depths >= oldest[:, None]) & (depths < lengths)
        columns = self._seen & (lengths + self._seen.cumsum(axis=1) - 1 >= oldest[:, None])
        owner = self._owner[starts]
        places = np.minimum(self._firsts[owner][:, None] + depths, len(self._prompts) - 1)
        slots = np.concatenate([self._prompts[places], self._columns[owner, : columns.shape[1]]], axis=1)
        return self._told(starts, rank, np.concatenate([prompts, columns], axis=1), slots, shared=False)

    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each block of tokens starts [B], and each token's number in its block [N]."""
        firsts = np.searchsorted(self._owner, self._owner)
        rank = (np.arange(len(self._owner)) - firsts) % MOST
        return np.flatnonzero(rank == 0), rank

    def _told(
        self,
        starts: NDArray[np.int64],
        rank: NDArray[np.int64],
        seen: NDArray[np.bool_],  # [N, C]
        slots: NDArray[np.int64],  # [B, C]
        *,
        shared: bool,  # whether prompts are seen whole, beside these
    ) -> Blocks:
        owner = self._owner[starts]
        masks = np.bitwise_or.reduceat(np.where(seen, BITS[rank][:, None], np.uint64(0)), starts, axis=0)
        visible = masks != 0
        owns = visible.sum(axis=1)
        table = np.stack(
            [
                starts,
                np.diff(starts, append=len(rank)),
                self._firsts[owner],
                self._lengths[owner] * shared,
                owns.cumsum() - owns,
                owns,
            ],
            axis=1,
        )
        return Blocks(table, self._prompts, slots[visible], masks[visible])
