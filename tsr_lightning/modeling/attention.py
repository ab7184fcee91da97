"""Packed attention in a Hugging Face model: the contract, and how a model is made to follow it.

A forward pass takes one packed sequence of tokens without padding, so every linear layer computes what is needed and no
more. Only attention knows that the tokens belong to several sequences which share prefixes: the model hands its
queries, keys and values to a `PackedAttention`, through transformers' AttentionInterface. Without one it attends as
usual.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.recurrence import Recurrence

NAME = "shared_prefix"
_KEEPING = {"nemotron", "stablelm"}  # types whose layers hand no further arguments on to attention (transformers 5.23)


@dataclass(frozen=True, slots=True)
class ScoreParams:
    """Scale, window and cap of a layer's attention scores."""

    scale: float
    window: int | None = None  # sliding window: tokens that a token sees, itself included
    softcap: float | None = None  # scores are capped smoothly at ± this


class PackedAttention(Protocol):
    """Attends for one forward pass over packed tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, T, D], key and value [K, T, D] of the packed tokens (K divides H) -> [T, H, D]."""
        ...


@dataclass(frozen=True)
class OutputPositions:
    """The packed tokens whose final hidden state is needed."""

    tokens: NDArray[np.int64]  # [N] ascending
    attention: PackedAttention  # of the last layer: queries [H, N, D] of these tokens, all keys and values -> [N, H, D]


def install(model: PreTrainedModel) -> None:
    """Makes the model attend through this module."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ConfigError(
            f"model.policy.model is a {model.config.model_type} model, whose attention cannot be replaced: use one "
            "that follows transformers' AttentionInterface, such as Qwen, Llama, Mistral, Gemma or GPT-2"
        )
    backbone: Any = model.base_model
    if backbone is model:  # transformers' answer where the model has no attribute of its `base_model_prefix`
        raise ConfigError(
            f"model.policy.model is a {model.config.model_type} model, which cannot be run without its output layer, "
            "since transformers finds no base model in it: use another model"
        )
    if model.config.model_type in _KEEPING:
        for layer in backbone.layers:
            layer.register_forward_pre_hook(_take, with_kwargs=True)
            layer.self_attn.register_forward_pre_hook(_give, with_kwargs=True)


def packed_inputs(
    ids: Tensor, positions: Tensor, attention: PackedAttention, recurrence: Recurrence | None = None
) -> dict[str, Any]:
    """Arguments of a model's forward pass over packed tokens: ids [T] at positions [T] in their sequences."""
    states = {} if recurrence is None else {"packed_recurrence": recurrence}
    return states | {
        "input_ids": ids[None],
        "position_ids": positions[None],
        "attention_mask": ids.new_zeros(1, 1, 1, 1),  # of four dimensions, so that transformers builds none
        "use_cache": False,
        "packed_attention": attention,
    }


def _take(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Puts what a layer was given for its attention into that module, so that a copy of the model has its own."""
    attention: Any = layer.self_attn
    attention.packed = {key: value for key, value in named.items() if key == "packed_attention"}


def _give(attention: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, named | attention.packed


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
    packed_attention: PackedAttention | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Called by transformers: query [R, H, T, D], key and value [R, K, S, D] -> [R, T, H, D]."""
    unsupported = [name for name in ("s_aux", "position_bias") if others.get(name) is not None]
    if unsupported:
        raise ConfigError(
            f"model.policy.model attends with {unsupported[0]}, which packed attention does not support: "
            "use another model"
        )
    scores = ScoreParams(query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    if packed_attention is not None:
        layer = module.layer_idx
        assert isinstance(layer, int)
        query, key = query.to(value.dtype), key.to(value.dtype)  # autocast leaves rotated tensors in float32
        return packed_attention.attend(layer, query[0], key[0], value[0], scores)[None], None
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
    if shared > 1 and not causal:  # heads that share keys become queries of one head: larger products, no copies
        query = query.reshape(rows, key.shape[1], shared * length, width)
        mask = None if mask is None else mask.repeat(1, 1, shared, 1)
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scores.scale)
        return out.reshape(rows, heads, length, -1)  # CUDA's kernels may give it transposed
    if shared > 1:
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scores.scale
    )


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: ScoreParams, *, causal: bool
) -> Tensor:
    """With capped scores: softcap * tanh(scores / softcap) (Gemma 2, arXiv 2408.00118)."""
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
    """True -> 0, False -> very low but finite: a row of padding may see nothing, and must not become NaN. PyTorch
    converts a boolean mask too, but again at every layer."""
    low = max(-1e30, torch.finfo(dtype).min / 2)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, low)
