"""Attention by PyTorch, on any device: segments in buckets, and each decoded group in one row of a buffer.

`native_backend` does the same on a CPU and `static_backend` on a GPU, with the same methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsr_lightning.engines.transformers.group_rows import GroupRows
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVStore
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import ScoreParams, additive, dot_product
from tsr_lightning.modeling.buckets import StoredAttention
from tsr_lightning.modeling.recurrence import Recurrence
from tsr_lightning.modeling.segments import DecodeStep, Segment, select_queries


@dataclass(frozen=True)
class TorchBackend:
    """Decodes groups in a buffer, to which their prompts are copied."""

    buffer: DecodeBuffer

    def fits(self, groups: int, prompt: int, columns: int) -> bool:
        """True if there is memory to decode so many groups at once, with prompts and columns of at most so many
        tokens."""
        return groups * (prompt + columns) <= self.buffer.tokens

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> "TorchPrefill":
        """For segments that lie packed one after the other; slots [T] of their tokens."""
        return TorchPrefill(store, segments, torch.from_numpy(slots).to(store.hidden.device))

    def decode(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> "TorchDecode":
        return TorchDecode(store, self.buffer, prompts, columns)


@dataclass(frozen=True)
class TorchPrefill:
    """Attends for whole segments: stores their keys, and attends to them and to the prefixes that they extend."""

    store: KVStore
    segments: Sequence[Segment]
    slots: Tensor  # [T] of the tokens whose keys are new

    @cached_property
    def _attention(self) -> StoredAttention:
        return StoredAttention(self.segments, self.slots.device)

    def select_queries(self, tokens: NDArray[np.int64]) -> "TorchPrefill":
        """For the last layer, where only the packed `tokens` [N], ascending, have queries."""
        return TorchPrefill(self.store, select_queries(self.segments, tokens), self.slots)

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, padding and hidden keys included."""
        return self._attention.plan.scores_computed

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self.store.write(layer, self.slots, key, value)
        return self._attention.attend(query, self.store.keys[layer], self.store.values[layer], scores)


class TorchDecode:
    """Attends for one token of every branch, step after step (`modeling.segments.DecodeStep`). A step is one product
    per layer for all groups, each in one row of the buffer.

    Args:
        store: of the prompts' keys, where new ones are written too.
        buffer: memory for the rows.
        prompts: slots of each group's prompt.
        columns: the most of one group.
    """

    def __init__(
        self, store: KVStore, buffer: DecodeBuffer, prompts: Sequence[NDArray[np.int64]], columns: int
    ) -> None:
        self._store = store
        self._device = store.hidden.device
        self._rows = GroupRows(store, buffer, prompts, max(map(len, prompts)), columns)
        self.copy, self.keep = self._rows.copy, self._rows.keep

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
        group, count = np.asarray(groups), self._rows.count
        width = int(np.bincount(group).max())
        firsts = np.searchsorted(group, np.arange(count))
        self._step = DecodeStep(group, self._rows.lengths[group], visible)
        self._shape = (count, width, self._rows.prompt_width + visible.shape[1])
        self._is_full = len(group) == count * width
        self._queries = self._on(group * width + np.arange(len(group)) - firsts[group])
        self._slots = torch.tensor(slots, device=self._device)
        self._new = self._on(self._rows.places(groups, columns))
        self._masks: dict[int | None, Tensor] = {}

    def forward(self, backbone: nn.Module, ids: Sequence[int], recurrence: Recurrence | None = None) -> Tensor:
        """The final hidden states [N, H] of the prepared step's tokens."""
        positions = self._on(self._step.positions)
        return packed_forward.run_whole(backbone, torch.tensor(ids, device=self._device), positions, self, recurrence)

    @property
    def scores_needed(self) -> int:
        """Products of a query and a key in each head, of the next step."""
        return self._step.scores_needed

    @property
    def scores_computed(self) -> int:
        """Products as computed, padding and hidden keys included."""
        groups, width, length = self._shape
        return groups * width * length

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self._store.write(layer, self._slots, key, value)
        self._rows.write(layer, self._new, key, value)
        groups, width, length = self._shape
        if not self._is_full:
            spread = query.new_zeros(query.shape[0], groups * width, query.shape[2])
            query = spread.index_copy_(1, self._queries, query)
        heads = query.shape[0]
        out = dot_product(
            query.view(heads, groups, width, -1).transpose(0, 1),
            *self._rows.read(layer, length),
            self._mask(query.dtype, scores.window),
            scores,
        )
        out = out.transpose(1, 2).reshape(groups * width, heads, -1)
        return out if self._is_full else out.index_select(0, self._queries)

    def _mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """[G, 1, W, L], built once per step."""
        if window not in self._masks:
            groups, width, length = self._shape
            prompt = np.arange(self._rows.prompt_width)
            mask = torch.full((groups, width, length), float("-inf"), dtype=dtype, device=self._device)
            # Places without a branch see the prompt too: a row of nothing but minus infinity gives NaN.
            mask[:, :, : len(prompt)] = additive(self._on(prompt < self._rows.lengths[:, None]), dtype)[:, None]
            visible = self._step.visible(prompt, window)
            mask.view(groups * width, length)[self._queries] = additive(self._on(visible), dtype)
            self._masks[window] = mask[:, None]
        return self._masks[window]

    def _on(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
