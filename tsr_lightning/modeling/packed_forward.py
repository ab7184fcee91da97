"""A pass of our own through bodies of Llama's kind, over packed tokens: what both the engine and the update run.

Of the last layer only keys and values are computed for all tokens. The rest of it, and the last norm, are for those
tokens after which something is read: the ends of prompts, the places where something was sampled. A token that turns
out to be one of those later is finished then. On a CPU products, norms, rotations and gates are those of
native/operators; elsewhere they are PyTorch's.

Other bodies go their own way (transformers'), and so do these under autocast or with checkpoints of activations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol

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

from tsr_lightning.modeling.attention import OutputPositions, PackedAttention, ScoreParams, packed
from tsr_lightning.modeling.native import operators


@dataclass(frozen=True)
class Kind:
    """What a family's layers are, and how their attention differs from Llama's."""

    layer: type[nn.Module]
    window: Callable[[Any], int | None]  # of an attention
    norms_heads: bool = False  # queries and keys, before they are rotated


_KINDS: dict[type[PreTrainedModel], Kind] = {
    LlamaModel: Kind(LlamaDecoderLayer, lambda attention: None),
    MistralModel: Kind(MistralDecoderLayer, lambda attention: attention.config.sliding_window),
    Qwen2Model: Kind(Qwen2DecoderLayer, lambda attention: attention.sliding_window),
    SeedOssModel: Kind(SeedOssDecoderLayer, lambda attention: None),
    Qwen3Model: Kind(Qwen3DecoderLayer, lambda attention: attention.sliding_window, norms_heads=True),
}


class Operators(Protocol):
    """What a layer does beside attention, over N rows."""

    def rows(self, count: int) -> int:
        """How many rows a pass over so many tokens should have: more where that makes products of few shapes."""
        ...

    def linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        """[N, I] -> [N, O]."""
        ...

    def linear_plus(self, layer: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        """The same plus [N, O]."""
        ...

    def gated(self, gate: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
        """silu of one product times another: [N, I] -> [N, O] (arXiv 2002.05202)."""
        ...

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """By the root of the mean square of the last dimension (arXiv 1910.07467)."""
        ...

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """The first N of x [_, H, D] by angles of [N, D] (arXiv 2104.09864); x is not used again."""
        ...


class Plain:
    """PyTorch's, on any device."""

    def rows(self, count: int) -> int:
        return count

    def linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x)

    def linear_plus(self, layer: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        return other + layer(x)

    def gated(self, gate: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
        return functional.silu(gate(x)) * up(x)

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        one, other = x.chunk(2, dim=-1)
        return x * cosines[:, None] + torch.cat([-other, one], dim=-1) * sines[:, None]


def install(model: PreTrainedModel) -> None:
    """Makes packed passes through the body of a model ours, if it is of a kind that is known."""
    body: Any = model.base_model
    if type(body) in _KINDS and body.config.hidden_act in ("silu", "swish"):
        body.forward = MethodType(_forward, body)  # a bound method, so that a copy of the body runs the copy


def is_supported(body: Any) -> bool:
    """Whether a packed pass through this body is ours now."""
    if not isinstance(body.forward, MethodType) or body.forward.__func__ is not _forward:
        return False
    if type(body) not in _KINDS or type(body.layers[-1]) is not _KINDS[type(body)].layer:
        return False  # a strategy that shards weights puts its own classes there, and works by their calls
    checkpoints = body.layers[-1].gradient_checkpointing and body.training and torch.is_grad_enabled()
    return not checkpoints and not torch.is_autocast_enabled(body.device.type)


def run(
    body: nn.Module, ids: Tensor, positions: Tensor, reader: PackedAttention, reads: OutputPositions
) -> tuple[Tensor, Tensor]:
    """A pass over packed ids [T] at positions [T]: the last hidden states that are read [N, H], and for all tokens
    what `finish` makes theirs from [T, H]."""
    arguments = packed(ids, positions, reader)
    if not is_supported(body):
        hidden = body(**arguments).last_hidden_state[0]
        return hidden.index_select(0, _on(reads.tokens, hidden)), hidden
    out = body(**arguments, reads=reads)
    return out.last_hidden_state[0], out.hidden_states[-1][0]


def run_whole(body: nn.Module, ids: Tensor, positions: Tensor, reader: PackedAttention) -> Tensor:
    """A pass that is read after every token: the last hidden states [T, H]."""
    return body(**packed(ids, positions, reader)).last_hidden_state[0]


def finish(body: nn.Module, entering: Tensor, positions: Tensor, reader: PackedAttention) -> Tensor:
    """What `run` left out: entering [N, H] at positions [N] -> the last hidden states [N, H]. The keys of these tokens
    are there already, so the reader is given none."""
    if not is_supported(body):
        return entering
    way = _pass(body, entering, positions)
    return way.last(way.filled(entering), reader, None, keys=0)


def _forward(
    body: Any,
    input_ids: Tensor | None = None,
    *,
    reader: PackedAttention | None = None,
    reads: OutputPositions | None = None,
    **others: Any,
) -> BaseModelOutputWithPast:
    """In the place of the body's own, which it calls for all that is not ours."""
    if reader is None or input_ids is None or not is_supported(body):
        given = {} if reader is None else {"reader": reader}
        return type(body).forward(body, input_ids, **others, **given)
    x = body.embed_tokens(input_ids[0])
    tokens = len(x)
    way = _pass(body, x, others["position_ids"][0])
    x = way.filled(x)
    for layer in body.layers[:-1]:
        x = way.layer(layer, x, reader, None, tokens)
    if reads is None:
        return BaseModelOutputWithPast(last_hidden_state=way.last(x, reader, None, tokens)[None])
    hidden = way.last(x, reads.reader, _on(reads.tokens, x), tokens)
    return BaseModelOutputWithPast(last_hidden_state=hidden[None], hidden_states=(x[None, :tokens],))


def _pass(body: Any, x: Tensor, positions: Tensor) -> "_Pass":
    cosines, sines = body.rotary_emb(x[None], positions[None])
    is_native = x.dtype == body.norm.weight.dtype and operators.serves(x)
    return _Pass(body, operators.Native() if is_native else Plain(), cosines[0], sines[0])


@dataclass(frozen=True)
class _Pass:
    """Over T tokens in P rows. Those beyond T are zeros at first; no token sees them, and no gradient comes of them."""

    body: Any
    use: Operators
    cosines: Tensor  # [T, D]
    sines: Tensor  # [T, D]

    def layer(self, layer: Any, x: Tensor, reader: PackedAttention, reads: Tensor | None, keys: int) -> Tensor:
        """x [P, H] -> [P, H], or after `reads` [N] alone, in so many rows as N take. `keys` tokens give keys and
        values: all T, or none."""
        use, attention, mlp, kind = self.use, layer.self_attn, layer.mlp, _KINDS[type(self.body)]
        normed = self._norm(layer.input_layernorm, x)
        asked, given = normed, normed if keys else normed[:0]
        cosines, sines = self.cosines, self.sines
        if reads is not None:
            cosines, sines = (part.index_select(0, reads) for part in (cosines, sines))
            rows = self.filled(reads)  # any token will do for the rest
            x, asked = (part.index_select(0, rows) for part in (x, normed))
        query = use.linear(attention.q_proj, asked).unflatten(-1, (-1, attention.head_dim))
        key = use.linear(attention.k_proj, given).unflatten(-1, (-1, attention.head_dim))
        value = use.linear(attention.v_proj, given).unflatten(-1, (-1, attention.head_dim))[:keys]
        if kind.norms_heads:
            query, key = self._norm(attention.q_norm, query), self._norm(attention.k_norm, key)
        query = use.rotate(query, cosines, sines)
        key = use.rotate(key, self.cosines[:keys], self.sines[:keys])
        scores = ScoreParams(attention.scaling, kind.window(attention))
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        seen = reader.attend(attention.layer_idx, query, key, value, scores)
        x = use.linear_plus(attention.o_proj, self.filled(seen.flatten(1)), x)
        normed = self._norm(layer.post_attention_layernorm, x)
        return use.linear_plus(mlp.down_proj, use.gated(mlp.gate_proj, mlp.up_proj, normed), x)

    def last(self, x: Tensor, reader: PackedAttention, reads: Tensor | None, keys: int) -> Tensor:
        """The last layer and the last norm -> [T, H], or [N, H]."""
        x = self.layer(self.body.layers[-1], x, reader, reads, keys)
        return self._norm(self.body.norm, x[: len(self.cosines if reads is None else reads)])

    def filled(self, x: Tensor) -> Tensor:
        """[N, ...] and zeros, as many rows as N take."""
        missing = self.use.rows(len(x)) - len(x)
        return functional.pad(x, [0, 0] * (x.dim() - 1) + [0, missing]) if missing else x

    def _norm(self, norm: Any, x: Tensor) -> Tensor:
        return self.use.norm(x, norm.weight, norm.variance_epsilon)


def _on(reads: NDArray[np.int64], beside: Tensor) -> Tensor:
    return torch.from_numpy(reads).to(beside.device)
