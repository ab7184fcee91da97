"""Attention by PyTorch, on any device: segments in buckets, and each decoded group in one row of a buffer.

`native_backend` does the same on a CPU, with the same methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVStore
from tsr_lightning.modeling.attention import ScoreParams, additive, dot_product
from tsr_lightning.modeling.buckets import StoredAttention
from tsr_lightning.modeling.segments import DecodeStep, Segment, select_queries


@dataclass(frozen=True)
class TorchBackend:
    """Decodes groups in a buffer, to which their prompts are copied."""

    buffer: DecodeBuffer

    def fits(self, groups: int, tokens: int) -> bool:
        """Whether there is memory to decode so many groups of at most so many tokens at once."""
        return groups * tokens <= self.buffer.tokens

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
    """Attends for one token of every branch, step after step (`modeling.segments.DecodeStep`).

    A group has one row of the buffer, its prompt's keys and then its columns, so siblings share the prompt without a
    copy, and a step is one product per layer for all groups.

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
        self._buffer = buffer
        self._prompt_width = max(map(len, prompts))
        self._row_length = self._prompt_width + columns
        self._groups = len(prompts)
        slots = np.zeros((self._groups, self._row_length), dtype=np.int64)
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        for group, prompt in enumerate(prompts):
            slots[group, : len(prompt)] = prompt
            slots[group, len(prompt) :] = prompt[0]  # any finite number will do
        flat = self._on(slots.reshape(-1))
        self._keys, self._values = buffer.views(slots.size)
        for layer in range(len(self._keys)):
            torch.index_select(store.keys[layer], 1, flat, out=self._keys[layer])
            torch.index_select(store.values[layer], 1, flat, out=self._values[layer])

    def copy(self, groups: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        """Fills columns with tokens that are in the store already."""
        to, where = self._places(groups, columns), torch.tensor(slots, device=self._device)
        for layer in range(len(self._keys)):
            self._keys[layer].index_copy_(1, to, self._store.keys[layer].index_select(1, where))
            self._values[layer].index_copy_(1, to, self._store.values[layer].index_select(1, where))

    def keep(self, groups: Sequence[int]) -> None:
        """Drops all other groups; those that stay are renumbered in their order."""
        stay = torch.tensor(groups, device=self._device)
        views = self._buffer.views(len(groups) * self._row_length)
        for layers, kept in zip((self._keys, self._values), views, strict=True):
            for layer, old in enumerate(layers):
                rows = old.view(old.shape[0], self._groups, self._row_length, -1).index_select(1, stay)
                layers[layer] = kept[layer].copy_(rows.flatten(1, 2))
        self._lengths = self._lengths[list(groups)]
        self._groups = len(groups)

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
        group = np.asarray(groups)
        width = int(np.bincount(group).max())
        firsts = np.searchsorted(group, np.arange(self._groups))
        self._step = DecodeStep(group, self._lengths[group], visible)
        self._shape = (self._groups, width, self._prompt_width + visible.shape[1])
        self._is_full = len(group) == self._groups * width
        self._queries = self._on(group * width + np.arange(len(group)) - firsts[group])
        self._slots = torch.tensor(slots, device=self._device)
        self._new = self._places(groups, columns)
        self._masks: dict[int | None, Tensor] = {}

    @property
    def scores_computed(self) -> int:
        """Of the next step, as for `TorchPrefill`."""
        groups, width, length = self._shape
        return groups * width * length

    @property
    def positions(self) -> Tensor:
        """[N] of the next step's tokens in their sequences."""
        return self._on(self._step.positions)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self._store.write(layer, self._slots, key, value)
        self._keys[layer].index_copy_(1, self._new, key)
        self._values[layer].index_copy_(1, self._new, value)
        groups, width, length = self._shape
        if not self._is_full:
            spread = query.new_zeros(query.shape[0], groups * width, query.shape[2])
            query = spread.index_copy_(1, self._queries, query)
        heads = query.shape[0]
        out = dot_product(
            query.view(heads, groups, width, -1).transpose(0, 1),
            self._rows(self._keys[layer], length),
            self._rows(self._values[layer], length),
            self._mask(query.dtype, scores.window),
            scores,
        )
        out = out.transpose(1, 2).reshape(groups * width, heads, -1)
        return out if self._is_full else out.index_select(0, self._queries)

    def _rows(self, tensor: Tensor, length: int) -> Tensor:
        """[K, G * all, D] -> [G, K, length, D], without a copy."""
        return tensor.view(tensor.shape[0], self._groups, self._row_length, -1)[:, :, :length].transpose(0, 1)

    def _mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """[G, 1, W, L], built once per step."""
        if window not in self._masks:
            groups, width, length = self._shape
            prompt = np.arange(self._prompt_width)
            mask = torch.full((groups, width, length), float("-inf"), dtype=dtype, device=self._device)
            # Places without a branch see the prompt too: a row of nothing but minus infinity gives NaN.
            mask[:, :, : self._prompt_width] = additive(self._on(prompt < self._lengths[:, None]), dtype)[:, None]
            visible = self._step.visible(prompt, window)
            mask.view(groups * width, length)[self._queries] = additive(self._on(visible), dtype)
            self._masks[window] = mask[:, None]
        return self._masks[window]

    def _places(self, groups: Sequence[int], columns: Sequence[int]) -> Tensor:
        return self._on(np.asarray(groups) * self._row_length + self._prompt_width + np.asarray(columns))

    def _on(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
