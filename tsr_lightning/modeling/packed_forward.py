"""Packed forward pass for Llama-style models, for generation and for training.

The last layer computes keys and values for all tokens; the rest of it and the final norm run only where the final
hidden state is needed: at the ends of prompts, and where a token was sampled. `finish` completes other tokens later.

Other models run transformers' own forward pass, as do these under autocast or with activation checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import MethodType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaModel, MistralModel, PreTrainedModel, Qwen2Model, Qwen3Model, SeedOssModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer
from transformers.models.seed_oss.modeling_seed_oss import SeedOssDecoderLayer

from tsr_lightning.modeling.attention import OutputPositions, PackedAttention, ScoreParams, packed_inputs
from tsr_lightning.modeling.kernels import Kernels, Operators
from tsr_lightning.modeling.recurrence import Recurrence
from tsr_lightning.modeling.ropes import DYNAMIC_ROPES


@dataclass(frozen=True)
class Architecture:
    """A model's layers, and how their attention differs from Llama's."""

    layer: type[nn.Module]
    window: Callable[[Any], int | None]  # sliding window of an attention module
    has_head_norms: bool = False  # of queries and keys, before the rotary embedding


LAYER_METHOD = "packed_layer"  # what packed passes call of a layer, in place of `forward`

_ARCHITECTURES: dict[type[PreTrainedModel], Architecture] = {
    LlamaModel: Architecture(LlamaDecoderLayer, lambda attention: None),
    MistralModel: Architecture(MistralDecoderLayer, lambda attention: attention.config.sliding_window),
    Qwen2Model: Architecture(Qwen2DecoderLayer, lambda attention: attention.sliding_window),
    SeedOssModel: Architecture(SeedOssDecoderLayer, lambda attention: None),
    Qwen3Model: Architecture(Qwen3DecoderLayer, lambda attention: attention.sliding_window, has_head_norms=True),
}


def install(model: PreTrainedModel, kernels: Kernels = Kernels.AUTO) -> None:
    """Makes a model's packed passes those of this module, if its architecture is supported.

    Args:
        model: any causal language model.
        kernels: which its packed passes and their attention may use.
    """
    kernels.check()
    backbone: Any = model.base_model
    backbone.kernels = kernels
    if type(backbone) in _ARCHITECTURES and backbone.config.hidden_act in ("silu", "swish"):
        backbone.forward = MethodType(_forward, backbone)  # bound methods, so that a copy of the model runs the copy
        for layer in backbone.layers:
            layer.packed_layer = MethodType(_layer, layer)


def kernels_of(model: PreTrainedModel) -> Kernels:
    """The kernels that a model was installed with."""
    kernels = model.base_model.kernels
    assert isinstance(kernels, Kernels)
    return kernels


def project(model: PreTrainedModel, head: nn.Module, hidden: Tensor) -> Tensor:
    """Logits [M, V] of hidden states [M, H]. Without gradients the product is oneDNN's, in float32 in two thirds of
    PyTorch's time."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled(hidden.device.type):
        return cast(Tensor, head(hidden))
    operators = kernels_of(model).operators(hidden)
    return operators.linear(head, _padded(operators, hidden))[: len(hidden)]


def packed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of which packed passes call `LAYER_METHOD` and not `forward`; none where passes are the model's own.
    Who shards the weights of a layer has to gather them for either."""
    backbone: Any = model.base_model
    return list(backbone.layers) if _is_installed(backbone) else []


def _is_installed(backbone: Any) -> bool:
    return isinstance(backbone.forward, MethodType) and backbone.forward.__func__ is _forward


def is_supported(backbone: Any) -> bool:
    """True if packed passes through this model run this module's code now."""
    if not _is_installed(backbone) or type(backbone) not in _ARCHITECTURES:
        return False
    if not isinstance(backbone.layers[-1], _ARCHITECTURES[type(backbone)].layer):
        return False  # something wraps the layers, and relies on their being called
    checkpoints = backbone.layers[-1].gradient_checkpointing and backbone.training and torch.is_grad_enabled()
    return not checkpoints and not torch.is_autocast_enabled(backbone.device.type)


def is_capturable(backbone: Any) -> bool:
    """True if a pass without gradients runs the same kernels whatever its inputs hold, so that a CUDA graph can replay
    it; under autocast too, where it is transformers' own. Rotary embeddings that change with the
    longest position read it, and wait for the device."""
    known = _is_installed(backbone) and type(backbone) in _ARCHITECTURES
    return known and backbone.rotary_emb.rope_type not in DYNAMIC_ROPES


def run(
    backbone: nn.Module,
    ids: Tensor,
    positions: Tensor,
    attention: PackedAttention,
    outputs: OutputPositions,
    recurrence: Recurrence | None = None,
) -> tuple[Tensor, Tensor]:
    """A pass over packed ids [T] at positions [T] in their sequences, with the recurrence of a model that has one.

    Returns:
        The final hidden states at the output positions [N, H], and the states [T, H] that `finish` completes.
    """
    inputs = packed_inputs(ids, positions, attention, recurrence)
    if not is_supported(backbone):
        hidden = backbone(**inputs).last_hidden_state[0]
        return hidden.index_select(0, _on(outputs.tokens, hidden)), hidden
    out = backbone(**inputs, outputs=outputs)
    return out.last_hidden_state[0], out.hidden_states[-1][0]


def run_whole(
    backbone: nn.Module,
    ids: Tensor,
    positions: Tensor,
    attention: PackedAttention,
    recurrence: Recurrence | None = None,
) -> Tensor:
    """A pass over packed ids [T] at positions [T]: the final hidden states of all tokens [T, H]."""
    return backbone(**packed_inputs(ids, positions, attention, recurrence)).last_hidden_state[0]


def finish(backbone: nn.Module, unfinished: Tensor, positions: Tensor, attention: PackedAttention) -> Tensor:
    """The final hidden states [N, H] of states that `run` left unfinished [N, H], at positions [N].

    The keys of these tokens are stored already, so the attention is given none.
    """
    if not is_supported(backbone):
        return unfinished
    layers = _pass(backbone, unfinished, positions)
    return layers.last(layers.pad(unfinished), attention, None, keys=0)


def _layer(
    layer: nn.Module, x: Tensor, within: "_Pass", attention: PackedAttention, queries: Tensor | None, keys: int
) -> Tensor:
    """`_Pass.layer` as a method of the layer, around which hooks can gather its weights."""
    return within.layer(layer, x, attention, queries, keys)


def _forward(
    backbone: Any,
    input_ids: Tensor | None = None,
    *,
    packed_attention: PackedAttention | None = None,
    outputs: OutputPositions | None = None,
    **others: Any,
) -> BaseModelOutputWithPast:
    """Replaces the model's own forward, and calls it for all but packed passes."""
    if packed_attention is None or input_ids is None or not is_supported(backbone):
        given = {} if packed_attention is None else {"packed_attention": packed_attention}
        return type(backbone).forward(backbone, input_ids, **others, **given)
    x = backbone.embed_tokens(input_ids[0])
    tokens = len(x)
    layers = _pass(backbone, x, others["position_ids"][0])
    x = layers.pad(x)
    for layer in islice(backbone.layers, len(backbone.layers) - 1):
        x = layer.packed_layer(x, layers, packed_attention, None, tokens)
    if outputs is None:
        return BaseModelOutputWithPast(last_hidden_state=layers.last(x, packed_attention, None, tokens)[None])
    hidden = layers.last(x, outputs.attention, _on(outputs.tokens, x), tokens)
    return BaseModelOutputWithPast(last_hidden_state=hidden[None], hidden_states=(x[None, :tokens],))


def _pass(backbone: Any, x: Tensor, positions: Tensor) -> "_Pass":
    cosines, sines = backbone.rotary_emb(x[None], positions[None])
    kernels = backbone.kernels if x.dtype == backbone.norm.weight.dtype else Kernels.TORCH
    return _Pass(backbone, kernels.operators(x), cosines[0], sines[0])


@dataclass(frozen=True)
class _Pass:
    """Over T tokens in P rows. Rows beyond T begin as zeros; no token sees them, and they give no gradient."""

    backbone: Any
    operators: Operators
    cosines: Tensor  # [T, D]
    sines: Tensor  # [T, D]

    def layer(self, layer: Any, x: Tensor, attention: PackedAttention, queries: Tensor | None, keys: int) -> Tensor:
        """One layer: x [P, H] -> [P, H].

        Args:
            layer: the model's.
            x: its input.
            attention: attends for the pass.
            queries: [N] the only tokens with queries; the output then has the rows of N tokens.
            keys: tokens that give keys and values: all T, or none.
        """
        ops, attn, mlp = self.operators, layer.self_attn, layer.mlp
        architecture = _ARCHITECTURES[type(self.backbone)]
        normed = self._norm(layer.input_layernorm, x)
        query_input, key_input = normed, normed if keys else normed[:0]
        cosines, sines = self.cosines, self.sines
        if queries is not None:
            cosines, sines = (part.index_select(0, queries) for part in (cosines, sines))
            rows = self.pad(queries)  # padding repeats token 0
            x, query_input = (part.index_select(0, rows) for part in (x, normed))
        query = _in_heads(ops.linear(attn.q_proj, query_input), attn.head_dim)
        key = _in_heads(ops.linear(attn.k_proj, key_input), attn.head_dim)
        value = _in_heads(ops.linear(attn.v_proj, key_input), attn.head_dim)[:keys]
        if architecture.has_head_norms:
            query, key = self._norm(attn.q_norm, query), self._norm(attn.k_norm, key)
        query = ops.rotate(query, cosines, sines)
        key = ops.rotate(key, self.cosines[:keys], self.sines[:keys])
        scores = ScoreParams(attn.scaling, architecture.window(attn))
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        attended = attention.attend(attn.layer_idx, query, key, value, scores)
        x = ops.linear_add(attn.o_proj, self.pad(attended.flatten(1)), x)
        normed = self._norm(layer.post_attention_layernorm, x)
        return ops.linear_add(mlp.down_proj, ops.gated(mlp.gate_proj, mlp.up_proj, normed), x)

    def last(self, x: Tensor, attention: PackedAttention, queries: Tensor | None, keys: int) -> Tensor:
        """The last layer and the final norm -> [T, H], or [N, H] where only `queries` [N] have queries."""
        x = self.backbone.layers[-1].packed_layer(x, self, attention, queries, keys)
        return self._norm(self.backbone.norm, x[: len(self.cosines if queries is None else queries)])

    def pad(self, x: Tensor) -> Tensor:
        """[N, ...] and zeros, up to the rows of a pass over N tokens."""
        return _padded(self.operators, x)

    def _norm(self, norm: Any, x: Tensor) -> Tensor:
        return self.operators.norm(x, norm.weight, norm.variance_epsilon)


def _in_heads(x: Tensor, width: int) -> Tensor:
    """[N, heads · D] -> [N, heads, D]; `unflatten` takes five times as long."""
    rows, numbers = x.shape
    return x.view(rows, numbers // width, width)


def _padded(operators: Operators, x: Tensor) -> Tensor:
    missing = operators.padded_rows(x.shape[0]) - x.shape[0]
    return functional.pad(x, [0, 0] * (x.dim() - 1) + [0, missing]) if missing else x


def _on(tokens: NDArray[np.int64], beside: Tensor) -> Tensor:
    return torch.from_numpy(tokens).to(beside.device)
