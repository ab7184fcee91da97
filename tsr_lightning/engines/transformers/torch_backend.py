"""Readers that attend by PyTorch, on any device: segments in buckets, and each family on a row of the workbench."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVStore
from tsr_lightning.modeling.attention import (
    Layout,
    ScoreParams,
    Segment,
    additive,
    dot_product,
    layout_of,
    select_queries,
)


@dataclass(frozen=True)
class TorchBackend:
    """Readers that extend families on a workbench, to which their prompts are copied."""

    bench: DecodeBuffer

    def fits(self, families: int, length: int) -> bool:
        return families * length <= self.bench.tokens

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> "TorchPrefill":
        device = store.hidden.device
        return TorchPrefill(store, torch.from_numpy(slots).to(device), segments)

    def steps(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> "TorchDecode":
        return TorchDecode(store, self.bench, prompts, columns)


@dataclass(frozen=True)
class TorchPrefill:
    """Reads whole segments: their keys go to the store, and come back with those of the prefixes they extend."""

    store: KVStore
    slots: Tensor  # [T] of the tokens whose keys are new
    segments: Sequence[Segment]

    @cached_property
    def layout(self) -> Layout:
        """Over the store."""
        return layout_of(self.segments, self.slots.device)

    def select_queries(self, reads: NDArray[np.int64]) -> "TorchPrefill":
        return TorchPrefill(self.store, self.slots, select_queries(self.segments, reads))

    @property
    def scored(self) -> int:
        return self.layout.scored

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self.store.write(layer, self.slots, key, value)
        return self.layout.attend(query, self.store.keys[layer], self.store.values[layer], scores)


class TorchDecode:
    """Reads one token of every branch.

    Each family has one row on the workbench: its prompt's keys, then its columns. Siblings share the prompt without
    copying it, and a step is one product per layer for the whole wave.

    Args:
        store: of the prompts' keys, and where new ones are written too.
        bench: the memory.
        prompts: slots of each family's prompt.
        columns: the most tokens that the branches of one family may say together.
    """

    def __init__(self, store: KVStore, bench: DecodeBuffer, prompts: Sequence[NDArray[np.int64]], columns: int) -> None:
        self.store = store
        self.device = store.hidden.device
        self.longest = max(map(len, prompts))
        self.length = self.longest + columns
        self.families = len(prompts)
        self._bench = bench
        slots = np.zeros((self.families, self.length), dtype=np.int64)
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        for family, prompt in enumerate(prompts):
            slots[family, : len(prompt)] = prompt
            slots[family, len(prompt) :] = prompt[0]  # any finite number will do
        where = self._on(slots.reshape(-1))
        self._keys, self._values = bench.views(slots.size)
        for layer in range(len(self._keys)):
            torch.index_select(store.keys[layer], 1, where, out=self._keys[layer])
            torch.index_select(store.values[layer], 1, where, out=self._values[layer])
        self._prompts: Tensor | None = None

    def copy(self, families: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        here = self._at(families, columns)
        there = torch.tensor(slots, device=self.device)
        for layer in range(len(self._keys)):
            self._keys[layer].index_copy_(1, here, self.store.keys[layer].index_select(1, there))
            self._values[layer].index_copy_(1, here, self.store.values[layer].index_select(1, there))

    def keep(self, families: Sequence[int]) -> None:
        stay = torch.tensor(families, device=self.device)
        views = self._bench.views(len(families) * self.length)
        for whole, fewer in zip((self._keys, self._values), views, strict=True):
            for layer, old in enumerate(whole):
                kept = old.view(old.shape[0], self.families, self.length, -1).index_select(1, stay)
                whole[layer] = fewer[layer].copy_(kept.flatten(1, 2))
        self._lengths = self._lengths[list(families)]
        self._prompts = None
        self.families = len(families)

    def expect(
        self, families: Sequence[int], columns: Sequence[int], seen: NDArray[np.bool_], slots: Sequence[int]
    ) -> None:
        owner = np.asarray(families)
        width = int(np.bincount(owner).max())
        firsts = np.searchsorted(owner, np.arange(self.families))
        self._place = owner * width + np.arange(len(owner)) - firsts[owner]
        self._owner, self._seen = owner, seen
        self._shape = (self.families, width, self.longest + seen.shape[1])
        self._is_full = len(owner) == self.families * width
        self._places = self._on(self._place)
        self._slots = torch.tensor(slots, device=self.device)
        self._written = self._at(families, columns)
        self._masks: dict[int | None, Tensor] = {}

    @property
    def scored(self) -> int:
        families, width, length = self._shape
        return families * width * length

    @property
    def positions(self) -> Tensor:
        return self._on(self._lengths[self._owner] + self._seen.sum(axis=1) - 1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self.store.write(layer, self._slots, key, value)
        self._keys[layer].index_copy_(1, self._written, key)
        self._values[layer].index_copy_(1, self._written, value)
        families, width, length = self._shape
        if not self._is_full:
            spread = query.new_zeros(query.shape[0], families * width, query.shape[2])
            query = spread.index_copy_(1, self._places, query)
        heads = query.shape[0]
        out = dot_product(
            query.view(heads, families, width, -1).transpose(0, 1),
            self._row(self._keys[layer], length),
            self._row(self._values[layer], length),
            self._masked(query.dtype, scores.window),
            scores,
        )
        out = out.transpose(1, 2).reshape(families * width, heads, -1)
        return out if self._is_full else out.index_select(0, self._places)

    def _row(self, tensor: Tensor, length: int) -> Tensor:
        """[K, F * all, D] -> [F, K, length, D], without a copy."""
        return tensor.view(tensor.shape[0], self.families, self.length, -1)[:, :, :length].transpose(0, 1)

    def _masked(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """[F, 1, W, L], made once per pass."""
        if window not in self._masks:
            families, width, length = self._shape
            mask = torch.full((families, width, length), float("-inf"), dtype=dtype, device=self.device)
            mask[:, :, : self.longest] = self._prompt_mask(dtype)[:, None]
            mask.view(families * width, length)[self._places, self.longest :] = additive(self._on(self._seen), dtype)
            if window is not None:
                mask.view(families * width, length)[self._places] += additive(self._on(self._near(window)), dtype)
            self._masks[window] = mask[:, None]
        return self._masks[window]

    def _prompt_mask(self, dtype: torch.dtype) -> Tensor:
        """[F, P]: places that hold no branch see it too, since a row of nothing but minus infinity is no number."""
        if self._prompts is None or self._prompts.dtype != dtype:
            self._prompts = additive(self._on(np.arange(self.longest) < self._lengths[:, None]), dtype)
        return self._prompts

    def _near(self, window: int) -> NDArray[np.bool_]:
        """[N, L]: the keys within a window of each branch's token."""
        starts = self._lengths[self._owner][:, None]
        said = self._seen.cumsum(axis=1)
        prompt = np.broadcast_to(np.arange(self.longest), (len(said), self.longest))
        keys = np.concatenate([prompt, starts + said - 1], axis=1)  # their positions
        return keys > starts + said[:, -1:] - 1 - window

    def _at(self, families: Sequence[int], columns: Sequence[int]) -> Tensor:
        return self._on(np.asarray(families) * self.length + self.longest + np.asarray(columns))

    def _on(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)
