"""Attention over packed rows that share prefixes: what both the engine and the update run their models with.

A forward pass takes one packed sequence of tokens, without padding: every linear layer computes what is needed and no
more. Only attention knows that the tokens belong to segments, and that a segment attends to the path of keys that
leads to it and to itself. Segments of like shape are gathered into buckets, and a bucket is one call of PyTorch's
scaled dot-product attention; padding exists in there alone.

It enters a Hugging Face model through transformers' AttentionInterface; a model without a reader attends as usual.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from tsr_lightning.errors import ConfigError

NAME = "shared_prefix"
_MASK_ELEMENTS = 2**23  # of one bucket: 32 MiB in float32
_WASTE = 1.15  # how much larger than its segments a bucket's product of lengths may be


@dataclass(frozen=True, slots=True)
class ScoreParams:
    """How a layer makes scores of products: what the model hands to its attention."""

    scale: float
    window: int | None = None  # a token sees this many, itself included
    softcap: float | None = None  # scores are capped smoothly at ± this


class PackedAttention(Protocol):
    """Attends for one forward pass over packed tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], key and value [K, T, D] of the packed tokens (K divides H) -> [T, H, D]."""
        ...


@dataclass(frozen=True)
class OutputPositions:
    """After which of the packed tokens something is read."""

    tokens: NDArray[np.int64]  # [N] ascending
    reader: PackedAttention  # of the last layer: queries [H, N, D] at these positions, all keys and values -> [N, H, D]


def install(model: PreTrainedModel) -> None:
    """Makes the model attend through this file."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ConfigError(
            f"model.policy.model is a {model.config.model_type} model, whose attention cannot be replaced: use one "
            "that follows transformers' AttentionInterface, such as Qwen, Llama, Mistral, Gemma or GPT-2"
        )


def packed(ids: Tensor, positions: Tensor, reader: PackedAttention) -> dict[str, Any]:
    """Arguments of a model's forward pass over packed tokens: ids [T], positions [T] of each in its own row."""
    return {
        "input_ids": ids[None],
        "position_ids": positions[None],
        "attention_mask": ids.new_zeros(1, 1, 1, 1),  # four dimensions: transformers builds none of its own
        "use_cache": False,
        "reader": reader,
    }


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    reader: PackedAttention | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: query [R, H, T, D], key and value [R, K, S, D] -> [R, T, H, D]."""
    strange = [name for name in ("s_aux", "position_bias") if others.get(name) is not None]
    if strange:
        raise ConfigError(
            f"model.policy.model attends with {strange[0]}, which rows that share prefixes do not support: "
            "use another model"
        )
    scores = ScoreParams(query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    if reader is not None:
        layer = module.layer_idx
        assert isinstance(layer, int)
        query, key = query.to(value.dtype), key.to(value.dtype)  # autocast leaves what was rotated in float32
        return reader.attend(layer, query[0], key[0], value[0], scores)[None], None
    causal = attention_mask is None and query.shape[2] > 1
    if attention_mask is not None:
        attention_mask = additive(attention_mask, query.dtype) if attention_mask.dtype == torch.bool else attention_mask
    return dot_product(query, key, value, attention_mask, scores, causal=causal).transpose(1, 2), None


def dot_product(
    query: Tensor,  # [R, H, N, D]
    key: Tensor,  # [R, K, L, D]
    value: Tensor,  # [R, K, L, D]
    mask: Tensor | None,  # [R or 1, 1, N, L] added to the scores
    scores: ScoreParams,
    *,
    causal: bool = False,
) -> Tensor:
    """Attention of H heads that share K heads of keys -> [R, H, N, D]. `causal` takes no mask, and N = L."""
    rows, heads, length, width = query.shape
    shared = heads // key.shape[1]
    if scores.softcap is not None:
        return _capped(query, key, value, mask, scores, causal=causal)
    if shared > 1 and not causal:  # heads that share keys are more queries of one head: fatter products, no copies
        query = query.reshape(rows, key.shape[1], shared * length, width)
        mask = None if mask is None else mask.repeat(1, 1, shared, 1)
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scores.scale)
        return out.view(rows, heads, length, -1)
    if shared > 1:
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scores.scale
    )


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: ScoreParams, *, causal: bool
) -> Tensor:
    """By hand, for a cap on the scores: softcap * tanh(scores / softcap) (Gemma 2, arXiv 2408.00118)."""
    assert scores.softcap is not None
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    products = query @ key.transpose(-1, -2) * scores.scale
    products = scores.softcap * torch.tanh(products / scores.softcap)
    if causal:
        visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        mask = additive(visible, key.dtype)
    if mask is not None:
        products = products + mask
    return products.softmax(dim=-1, dtype=torch.float32).to(value.dtype) @ value


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """True -> 0, False -> very low and still finite, since a row of padding may see nothing and must not become NaN.
    PyTorch makes this of a boolean mask too, but anew at every layer."""
    low = max(-1e30, torch.finfo(dtype).min / 2)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, low)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive packed tokens, and the stored keys that they may attend to."""

    length: int  # N
    path: NDArray[np.int64]  # [L] where the keys of its row lie, from the row's first token to the segment's last


def select_queries(segments: Sequence[Segment], reads: NDArray[np.int64]) -> list[Segment]:
    """Those of the packed tokens `reads` [N] alone, ascending."""
    ends = np.cumsum([segment.length for segment in segments])
    owner = np.searchsorted(ends, reads, side="right")
    starts = np.flatnonzero(np.append(True, (np.diff(reads) != 1) | (np.diff(owner) != 0)))  # of runs side by side
    parts = []
    for start, end in zip(starts, [*starts[1:], len(reads)], strict=True):
        segment, last = segments[owner[start]], reads[end - 1]
        parts.append(Segment(int(end - start), segment.path[: len(segment.path) - int(ends[owner[start]] - 1 - last)]))
    return parts


@dataclass(frozen=True)
class Bucket:
    """Segments of like shape, padded: R rows of at most N queries over at most L keys."""

    queries: Tensor  # [R * N] packed tokens
    keys: Tensor  # [R * L] stored keys
    shape: tuple[int, int, int]  # R, N, L
    starts: Tensor  # [R] keys before a segment's first query

    def mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """[R, 1, N, L] added to the scores. Keys beyond a row's end are seen by padding alone."""
        key = (dtype, window)
        if key not in self._masks:
            _, queries, keys = self.shape
            device = self.starts.device
            own = self.starts[:, None, None] + torch.arange(queries, device=device)[None, :, None]
            others = torch.arange(keys, device=device)[None, None, :]
            visible = others <= own
            if window is not None:
                visible &= others > own - window
            self._masks[key] = additive(visible, dtype)[:, None]
        return self._masks[key]

    @cached_property
    def _masks(self) -> dict[tuple[torch.dtype, int | None], Tensor]:
        return {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], stored key and value [K, S, D] -> [R * N, H, D]."""
        rows, queries, _ = self.shape
        query = _rows(query, self.queries, rows)
        key, value = _rows(key, self.keys, rows), _rows(value, self.keys, rows)
        out = dot_product(query, key, value, self.mask(query.dtype, scores.window), scores)
        return out.transpose(1, 2).reshape(rows * queries, out.shape[1], -1)


@dataclass(frozen=True)
class Layout:
    """How a pass's packed tokens attend."""

    buckets: tuple[Bucket, ...]
    places: Tensor  # [T] where each packed token's output lies in the buckets' outputs, one after the other

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], stored key and value [K, S, D] -> [T, H, D]."""
        parts = [bucket.attend(query, key, value, scores) for bucket in self.buckets]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, self.places)

    @property
    def scored(self) -> int:
        """Products of a query and a key, padding included."""
        return sum(rows * queries * keys for rows, queries, keys in (bucket.shape for bucket in self.buckets))


def layout_of(segments: Sequence[Segment], device: torch.device) -> Layout:
    """Buckets for segments that lie packed one after the other, in that order; indices on `device`."""
    firsts = np.cumsum([0, *(segment.length for segment in segments)])
    buckets = []
    places = np.empty(firsts[-1], dtype=np.int64)
    offset = 0
    for chosen in alike(segments):
        rows, queries = len(chosen), max(segments[i].length for i in chosen)
        keys = max(len(segments[i].path) for i in chosen)
        asked = np.empty((rows, queries), dtype=np.int64)
        stored = np.empty((rows, keys), dtype=np.int64)
        for row, i in enumerate(chosen):
            length, path = segments[i].length, segments[i].path
            asked[row, :length] = np.arange(firsts[i], firsts[i] + length)
            asked[row, length:] = firsts[i]  # padding repeats a token: any finite number will do
            stored[row, : len(path)] = path
            stored[row, len(path) :] = path[-1]
            places[firsts[i] : firsts[i] + length] = offset + row * queries + np.arange(length)
        starts = np.array([len(segments[i].path) - segments[i].length for i in chosen], dtype=np.int64)
        buckets.append(
            Bucket(
                queries=_on(asked.reshape(-1), device),
                keys=_on(stored.reshape(-1), device),
                shape=(rows, queries, keys),
                starts=_on(starts, device),
            )
        )
        offset += rows * queries
    return Layout(tuple(buckets), _on(places, device))


def alike(segments: Sequence[Segment]) -> Iterator[list[int]]:
    """Segments in parts whose padding is small."""
    order = sorted(range(len(segments)), key=lambda i: (len(segments[i].path), segments[i].length))
    part: list[int] = []
    queries = keys = needed = 0
    for i in order:
        length, path = segments[i].length, len(segments[i].path)
        wider, longer = max(queries, length), max(keys, path)
        padded = (len(part) + 1) * wider * longer
        if part and (padded > _WASTE * (needed + length * path) + 4096 or padded > _MASK_ELEMENTS):
            yield part
            part, needed, wider, longer = [], 0, length, path
        part.append(i)
        queries, keys, needed = wider, longer, needed + length * path
    if part:
        yield part


def _rows(tensor: Tensor, where: Tensor, rows: int) -> Tensor:
    """[H, S, D] at [R * N] -> [R, H, N, D], without another copy."""
    heads, _, width = tensor.shape
    return tensor.index_select(1, where).view(heads, rows, -1, width).transpose(0, 1)


def _on(indices: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(indices).to(device)
