"""The shape of a model, and its parameters. Pure functions of a transformers configuration."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from tsr_lightning.errors import require
from tsr_lightning.estimate.layers import (
    Layer,
    Linear,
    Part,
    attention,
    gated_delta_net,
    gated_mlp,
    head_width,
    lfm2_width,
    mamba2,
    norms,
    shared_mlp,
    short_convolution,
)
from tsr_lightning.modeling.ropes import DYNAMIC_ROPES


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, under the names of transformers' configurations, and its layers."""

    config: PretrainedConfig  # of the text model
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    layers: tuple[Layer, ...]
    has_dynamic_rope: bool = False  # rotary embeddings that read the longest position

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    @property
    def kinds(self) -> Mapping[Layer, int]:
        """The layers that differ, and how many there are of each."""
        return Counter(self.layers)

    @property
    def is_recurrent(self) -> bool:
        """True if a layer carries a state from token to token."""
        return any(layer.state for layer in self.kinds)

    @property
    def chunk(self) -> int:
        """Tokens of the longest chunk in which a state is computed; 0 where there is none."""
        return max((layer.state.chunk for layer in self.kinds if layer.state), default=0)

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers of all transformer layers."""
        return tuple(linear for layer in self.layers for linear in layer.linears)

    @property
    def linear_weights(self) -> int:
        """Weights of the linear layers of all transformer layers, which NF4 quantises; without biases."""
        return sum(count * layer.linear_weights for layer, count in self.kinds.items())

    @property
    def embedding_parameters(self) -> int:
        """V·H, twice where the output embedding is not tied to the input's."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def parameters(self) -> int:
        """Embeddings, layers, and a last norm."""
        layers = sum(count * layer.parameters for layer, count in self.kinds.items())
        return self.embedding_parameters + layers + self.hidden_size

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of the states of all layers after a prefix; 0 where none carries one.

        Args:
            itemsize: of the model's dtype, in which inputs of convolutions are kept; all else is in float32.
        """
        states = [(layer.state, count) for layer, count in self.kinds.items() if layer.state]
        return sum(count * (itemsize * state.convolution + 4 * state.recurrent) for state, count in states)


def shape_of(config: PretrainedConfig, name: object = "") -> ModelShape:
    """The shape that a configuration describes.

    Args:
        config: of transformers.
        name: the model's, for the error.

    Raises:
        ConfigError: for a model of which no layers are known.
    """
    text: Any = config.get_text_config()
    kinds = ", ".join(_LAYERS)
    remedy = f"its type is {config.model_type}, and estimates know {kinds} alone; name a model of these"
    require(text.model_type in _LAYERS, "model.policy.model", name, remedy)
    experts = text.to_dict().get("num_local_experts") or 0
    remedy = f"it has {experts} experts in a layer, and estimates know none; name a model without"
    require(not experts, "model.policy.model", name, remedy)
    return ModelShape(
        config=text,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=head_width(text),
        intermediate_size=text.intermediate_size,
        max_position_embeddings=text.max_position_embeddings,
        tie_word_embeddings=text.tie_word_embeddings,
        layers=_layers(text),
        has_dynamic_rope=(text.rope_parameters or {}).get("rope_type") in DYNAMIC_ROPES,
    )


def _layers(config: Any) -> tuple[Layer, ...]:
    """The layers in their order."""
    parts = _LAYERS[config.model_type]
    kinds = [_ALL] * config.num_hidden_layers if _ALL in parts else config.layer_types
    found = {kind: sum((part(config) for part in parts[kind]), norms(config)) for kind in set(kinds)}
    return tuple(found[kind] for kind in kinds)


_ALL = "all"
# Model type -> entry of the configuration's `layer_types` -> parts of such a layer, the mixer first; norms are added.
# Types of one kind are those of `modeling.packed_forward`, and Falcon-H1, which has two mixers in every layer.
_LAYERS: Mapping[str, Mapping[str, tuple[Part, ...]]] = {
    "llama": {
        _ALL: (
            attention(lambda c: c.attention_bias, lambda c: c.attention_bias),
            gated_mlp(lambda c: c.mlp_bias),
        )
    },
    "mistral": {_ALL: (attention(), gated_mlp())},
    "qwen2": {_ALL: (attention(lambda c: True), gated_mlp())},
    "qwen3": {
        _ALL: (attention(lambda c: c.attention_bias, lambda c: c.attention_bias, head_norms=True), gated_mlp()),
    },
    "seed_oss": {
        _ALL: (
            attention(lambda c: c.attention_bias, lambda c: c.attention_out_bias),
            gated_mlp(lambda c: c.mlp_bias),
        )
    },
    "lfm2": {
        "conv": (short_convolution, gated_mlp(width=lfm2_width, names=("w1", "w3", "w2"))),
        "full_attention": (
            attention(head_norms=True, output="out_proj"),
            gated_mlp(width=lfm2_width, names=("w1", "w3", "w2")),
        ),
    },
    "qwen3_5_text": {
        "linear_attention": (gated_delta_net, gated_mlp()),
        "full_attention": (
            attention(lambda c: c.attention_bias, lambda c: c.attention_bias, head_norms=True, gated=True),
            gated_mlp(),
        ),
    },
    "granitemoehybrid": {
        "linear_attention": (
            mamba2(lambda c: c.mamba_expand * c.hidden_size, lambda c: c.mamba_proj_bias, lambda c: True),
            shared_mlp,
        ),
        "full_attention": (attention(lambda c: c.attention_bias, lambda c: c.attention_bias), shared_mlp),
    },
    "falcon_h1": {
        _ALL: (
            mamba2(
                lambda c: c.mamba_expand * c.hidden_size if c.mamba_d_ssm is None else c.mamba_d_ssm,
                lambda c: c.projectors_bias,
                lambda c: c.mamba_rms_norm,
            ),
            attention(lambda c: c.attention_bias, lambda c: c.attention_bias),
            gated_mlp(lambda c: c.mlp_bias),
        )
    },
}
