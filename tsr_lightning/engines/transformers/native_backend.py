"""Attention by the native kernel, on a CPU: keys are read where they are stored. Methods as in `torch_backend`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsr_lightning.engines.transformers.kv_store import KVStore
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.native.blocks import BlockPlan
from tsr_lightning.modeling.native.kernel import NewKeys, attend, attend_step
from tsr_lightning.modeling.native.step_blocks import PlannedStep, StepPlan
from tsr_lightning.modeling.recurrence import Recurrence
from tsr_lightning.modeling.segments import DecodeStep, Segment, select_queries


@dataclass(frozen=True)
class NativeBackend:
    """Needs no memory beside the store."""

    group_heads: int  # query heads per key head

    def fits(self, groups: int, prompt: int, columns: int) -> bool:
        return True

    def prefill(
        self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]
    ) -> "NativePrefill | NativeLastTokens":
        if all(segment.length == 1 for segment in segments):
            return NativeLastTokens(store, self, segments, slots)
        return NativePrefill(store, self, segments, slots)

    def decode(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> "NativeDecode":
        return NativeDecode(store, self.group_heads, prompts, columns)


class NativePrefill:
    """Attends for whole segments."""

    def __init__(
        self, store: KVStore, backend: NativeBackend, segments: Sequence[Segment], slots: NDArray[np.int64]
    ) -> None:
        self._store = store
        self._backend = backend
        self._segments = segments
        self._slots = slots  # [T] of the tokens whose keys are new
        self._plan = BlockPlan(segments)

    @property
    def scores_computed(self) -> int:
        return self._plan.blocks(None).scores_computed

    def select_queries(self, tokens: NDArray[np.int64]) -> "NativePrefill | NativeLastTokens":
        return self._backend.prefill(self._store, select_queries(self._segments, tokens), self._slots)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        stored, blocks = (self._store.keys[layer], self._store.values[layer]), self._plan.blocks(scores.window)
        return attend(query, *stored, blocks, scores, new=NewKeys(self._slots, key, value))


class NativeLastTokens:
    """Attends for the last token of each of many sequences: a decode step over prompts alone."""

    def __init__(
        self, store: KVStore, backend: NativeBackend, segments: Sequence[Segment], slots: NDArray[np.int64]
    ) -> None:
        self._store = store
        self._backend = backend
        self._segments = segments
        self._slots = slots  # [T] of the tokens whose keys are new
        paths = [segment.path for segment in segments]
        lengths = np.array([len(path) for path in paths], dtype=np.int64)
        columns = np.empty((len(paths), 0), dtype=np.int64)
        step = DecodeStep(np.arange(len(paths)), lengths, columns.astype(np.bool_))
        self._step = PlannedStep(StepPlan(paths, backend.group_heads), step, columns)

    @property
    def scores_computed(self) -> int:
        return self._step.blocks(None).scores_computed

    def select_queries(self, tokens: NDArray[np.int64]) -> "NativePrefill | NativeLastTokens":
        return self._backend.prefill(self._store, select_queries(self._segments, tokens), self._slots)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        stored, blocks = (self._store.keys[layer], self._store.values[layer]), self._step.blocks(scores.window)
        return attend_step(query, *stored, blocks, scores, NewKeys(self._slots, key, value))


class NativeDecode:
    """Attends for one token of every branch; a column is a slot. Arguments as of `TorchDecode`."""

    def __init__(self, store: KVStore, group_heads: int, prompts: Sequence[NDArray[np.int64]], columns: int) -> None:
        self._store = store
        self._plan = StepPlan(prompts, group_heads)
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self._columns = np.zeros((len(prompts), columns), dtype=np.int64)  # slots

    def copy(self, groups: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        self._columns[groups, columns] = slots

    def keep(self, groups: Sequence[int]) -> None:
        stay = list(groups)
        self._plan.keep(stay)
        self._lengths, self._columns = self._lengths[stay], self._columns[stay]

    def prepare(
        self, groups: Sequence[int], columns: Sequence[int], visible: NDArray[np.bool_], slots: Sequence[int]
    ) -> None:
        self._columns[groups, columns] = slots
        group = np.asarray(groups)
        self._step = DecodeStep(group, self._lengths[group], visible)
        self._slots = np.array(slots, dtype=np.int64)
        self._planned = PlannedStep(self._plan, self._step, self._columns)

    @property
    def scores_computed(self) -> int:
        return self._planned.blocks(None).scores_computed

    @property
    def scores_needed(self) -> int:
        return self._step.scores_needed

    @property
    def positions(self) -> Tensor:
        """[N] of the next step's tokens in their sequences."""
        return torch.from_numpy(self._step.positions)

    def forward(self, backbone: nn.Module, ids: Sequence[int], recurrence: Recurrence | None = None) -> Tensor:
        return packed_forward.run_whole(backbone, torch.tensor(ids), self.positions, self, recurrence)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        stored, blocks = (self._store.keys[layer], self._store.values[layer]), self._planned.blocks(scores.window)
        return attend_step(query, *stored, blocks, scores, NewKeys(self._slots, key, value))
