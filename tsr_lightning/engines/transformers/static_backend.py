"""Attention for GPUs: segments by flex_attention, and decode steps in memory that stays where it is.

A step reads all that differs from the step before from static buffers, and its sizes are rounded up. So steps of equal
sizes are the same kernels on the same memory, and `replay` may capture and replay them. On a CPU the same code runs
without a capture. Methods as in `torch_backend`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsr_lightning.engines.transformers.cuda_graphs import Replay
from tsr_lightning.engines.transformers.group_rows import GroupRows, in_rows
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVStore
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import ScoreParams, additive, dot_product
from tsr_lightning.modeling.flex import FlexAttention
from tsr_lightning.modeling.recurrence import Recurrence
from tsr_lightning.modeling.rounding import Rounding
from tsr_lightning.modeling.segments import DecodeStep, Segment, select_queries

_BRANCHES = Rounding(least=4, per_octave=4)
_GROUPS = Rounding(least=1, per_octave=4)
_LENGTHS = Rounding(least=64, per_octave=16)  # kernels want multiples of 16


@dataclass(frozen=True)
class StepRounding:
    """Rounding of a step's sizes."""

    branches: Rounding = _BRANCHES
    groups: Rounding = _GROUPS
    lengths: Rounding = _LENGTHS  # of prompts and columns


@dataclass(frozen=True)
class StepShape:
    """Sizes of a step; equal ones use the same memory."""

    tokens: int  # N, those without a branch included
    rows: int  # R, of the buffer
    width: int  # W, branches of a group
    prompt: int  # P, places of a row for its prompt
    columns: int  # C, that branches see
    row_length: int

    @property
    def places(self) -> int:
        """Places of branches in all rows."""
        return self.rows * self.width

    @property
    def is_full(self) -> bool:
        """True if every place has a token, which may be one without a branch."""
        return self.tokens == self.places


class StepInputs:
    """Static memory of one shape's steps. A token without a branch sees nothing, and is written to spare places."""

    def __init__(self, shape: StepShape, device: torch.device) -> None:
        tokens = shape.tokens
        self._numbers = torch.zeros(6 * tokens + shape.rows, dtype=torch.int64, device=device)
        per_token = self._numbers[: 6 * tokens].view(6, tokens)
        self.ids, self.positions, self.slots, self.columns, self.places, self.lengths = per_token.unbind()  # [N]
        self.row_lengths = self._numbers[6 * tokens :]  # [R]
        self.visible = torch.zeros(tokens, shape.columns, dtype=torch.bool, device=device)

    def fill(self, per_token: NDArray[np.int64], row_lengths: NDArray[np.int64], visible: NDArray[np.bool_]) -> None:
        """Per token [6, N]: id, position, slot, place of its column, place among the rows' branches, prompt's length;
        prompts' lengths of the rows [R]; the columns that each token sees [N, C]."""
        self._numbers.copy_(torch.from_numpy(np.concatenate([per_token.reshape(-1), row_lengths])))
        self.visible.copy_(torch.from_numpy(visible))


@dataclass(frozen=True)
class StaticBackend:
    """Decodes groups in a buffer, to which their prompts are copied. The store has a spare slot after its last.

    Args:
        buffer: memory for the groups.
        replay: runs the steps.
        rounding: of their sizes.
    """

    buffer: DecodeBuffer
    replay: Replay
    rounding: StepRounding = field(default_factory=StepRounding)

    def fits(self, groups: int, prompt: int, columns: int) -> bool:
        """As `TorchBackend.fits`."""
        length = self.rounding.lengths.most(prompt + columns)
        return self.rounding.groups.up(groups) * length + 1 <= self.buffer.tokens

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> "FlexPrefill":
        """For segments that lie packed one after the other; slots [T] of their tokens."""
        return FlexPrefill(store, segments, torch.from_numpy(slots).to(store.hidden.device))

    def decode(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> "StaticDecode":
        return StaticDecode(store, self, prompts, columns)

    def inputs(self, shape: StepShape) -> StepInputs:
        """The static memory of this shape."""
        if shape not in self._inputs:
            self._inputs[shape] = StepInputs(shape, self.buffer.device)
        return self._inputs[shape]

    @cached_property
    def _inputs(self) -> dict[StepShape, StepInputs]:
        return {}


@dataclass(frozen=True)
class FlexPrefill:
    """Attends for whole segments: stores their keys, and attends to them and to the prefixes that they extend."""

    store: KVStore
    segments: Sequence[Segment]
    slots: Tensor  # [T] of the tokens whose keys are new

    @cached_property
    def _attention(self) -> FlexAttention:
        return FlexAttention(self.segments, self.slots.device)

    def select_queries(self, tokens: NDArray[np.int64]) -> "FlexPrefill":
        """For the last layer, where only the packed `tokens` [N], ascending, have queries."""
        return FlexPrefill(self.store, select_queries(self.segments, tokens), self.slots)

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, padding and hidden keys included."""
        return self._attention.scores_computed

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self.store.write(layer, self.slots, key, value)
        return self._attention.attend(query, self.store.keys[layer], self.store.values[layer], scores)


class StaticDecode:
    """Attends for one token of every branch, step after step. Arguments as of `TorchDecode`."""

    def __init__(
        self, store: KVStore, backend: StaticBackend, prompts: Sequence[NDArray[np.int64]], columns: int
    ) -> None:
        self._store = store
        self._backend = backend
        rounding = backend.rounding
        width = rounding.lengths.up(max(map(len, prompts)))
        self._columns = rounding.lengths.up(columns)
        self._rows = GroupRows(store, backend.buffer, prompts, width, self._columns, rounding.groups, spare=1)
        self.copy, self.keep = self._rows.copy, self._rows.keep
        self._weights: tuple[object, ...] = ()

    def prepare(
        self, groups: Sequence[int], columns: Sequence[int], visible: NDArray[np.bool_], slots: Sequence[int]
    ) -> None:
        """As `TorchDecode.prepare`."""
        rounding, rows = self._backend.rounding, self._rows
        group = np.asarray(groups)
        firsts = np.searchsorted(group, np.arange(len(rows.lengths)))
        width = rounding.branches.up(int(np.bincount(group).max()))
        self._step = DecodeStep(group, rows.lengths[group], visible)
        tokens = min(rounding.branches.up(len(group)), rows.count * width)
        seen = min(rounding.lengths.up(visible.shape[1]), self._columns)
        self._shape = shape = StepShape(tokens, rows.count, width, rows.prompt_width, seen, rows.length)
        places = group * width + np.arange(len(group)) - firsts[group]
        self._at = at = places if shape.is_full else np.arange(len(group))  # where among the step's tokens each is
        self._per_token = per_token = np.zeros((6, tokens), dtype=np.int64)
        per_token[2], per_token[3] = self._store.capacity, rows.count * rows.length  # spare places
        per_token[4] = np.arange(tokens) if shape.is_full else shape.places
        per_token[1:, at] = self._step.positions, slots, rows.places(groups, columns), places, rows.lengths[group]
        self._visible = np.zeros((tokens, seen), dtype=np.bool_)
        self._visible[at, : visible.shape[1]] = visible

    def forward(self, backbone: nn.Module, ids: Sequence[int], recurrence: Recurrence | None = None) -> Tensor:
        """The final hidden states [N, H] of the prepared step's tokens, of a model without a recurrence."""
        assert recurrence is None
        if not self._weights:
            # other kernels for weights that lie elsewhere, or without an adapter, whose weights then have no gradients
            self._weights = tuple((weight.data_ptr(), weight.requires_grad) for weight in backbone.parameters())
        rows, shape = self._rows, self._shape
        self._per_token[0, self._at] = ids
        inputs = self._backend.inputs(shape)
        inputs.fill(self._per_token, np.pad(rows.lengths, (0, rows.count - len(rows.lengths))), self._visible)
        keys, values = tuple(rows.keys), tuple(rows.values)

        def step() -> Tensor:
            attention = StaticAttention(shape, inputs, self._store, keys, values)
            return packed_forward.run_whole(backbone, inputs.ids, inputs.positions, attention)

        hidden = self._backend.replay((shape, self._weights), step)
        if shape.is_full and len(self._at) < len(hidden):
            return hidden.index_select(0, torch.from_numpy(self._at).to(hidden.device))
        return hidden[: len(self._at)]

    @property
    def scores_needed(self) -> int:
        """As of `TorchDecode`."""
        return self._step.scores_needed

    @property
    def scores_computed(self) -> int:
        return self._shape.places * (self._shape.prompt + self._shape.columns)


@dataclass(frozen=True)
class StaticAttention:
    """Attends for one step. Reads nothing but static memory and what it computed of it, since a capture keeps kernels
    alone."""

    shape: StepShape
    inputs: StepInputs
    store: KVStore
    keys: Sequence[Tensor]  # of each layer, in the buffer
    values: Sequence[Tensor]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        shape, inputs = self.shape, self.inputs
        self.store.write(layer, inputs.slots, key, value)
        self.keys[layer].index_copy_(1, inputs.columns, key)
        self.values[layer].index_copy_(1, inputs.columns, value)
        heads, _, head_width = query.shape
        if not shape.is_full:
            spread = query.new_zeros(heads, shape.places + 1, head_width)
            query = spread.index_copy_(1, inputs.places, query)[:, :-1]
        # heads that share keys become queries of one head, as in `dot_product`, whose mask is so repeated once a step
        shared = heads // len(key)
        query = query.unflatten(1, (shape.rows, shape.width)).transpose(0, 1)
        query = query.reshape(shape.rows, len(key), shared * shape.width, head_width)
        mask = self._mask(query.dtype, scores.window, shared)
        out = dot_product(query, self._read(self.keys[layer]), self._read(self.values[layer]), mask, scores)
        out = out.reshape(shape.rows, heads, shape.width, -1).transpose(1, 2).flatten(0, 1)
        return out if shape.is_full else out.index_select(0, inputs.places.clamp(max=shape.places - 1))

    def _read(self, buffer: Tensor) -> Tensor:
        """[R, K, P + C, D], without a copy."""
        rows = in_rows(buffer, self.shape.rows, self.shape.row_length)
        return rows[:, :, : self.shape.prompt + self.shape.columns].transpose(0, 1)

    def _mask(self, dtype: torch.dtype, window: int | None, shared: int) -> Tensor:
        """[R, 1, shared * W, P + C], built once per step."""
        if window not in self._masks:
            shape, inputs = self.shape, self.inputs
            prompt = torch.arange(shape.prompt, device=inputs.ids.device)
            lengths = inputs.lengths[:, None]
            seen = torch.cat([prompt < lengths, inputs.visible], dim=1)
            if window is not None:
                columns = lengths + inputs.visible.cumsum(dim=1) - 1
                positions = torch.cat([prompt.expand(shape.tokens, -1), columns], dim=1)
                seen &= positions > inputs.positions[:, None] - window
            # places without a branch see the prompt, as in other backends, and one more takes tokens without a place
            mask = seen.new_zeros(shape.places + 1, shape.prompt + shape.columns)
            of_rows = (prompt < inputs.row_lengths[:, None])[:, None].expand(-1, shape.width, -1)
            mask[:-1, : shape.prompt] = of_rows.flatten(0, 1)
            mask = mask.index_copy_(0, inputs.places, seen)[:-1].unflatten(0, (shape.rows, 1, shape.width))
            self._masks[window] = additive(mask, dtype).repeat(1, 1, shared, 1)
        return self._masks[window]

    @cached_property
    def _masks(self) -> dict[int | None, Tensor]:
        return {}
