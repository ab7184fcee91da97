"""The shape of a Llama-style model, and its parameters. Pure functions of a transformers configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from tsr_lightning.errors import require
from tsr_lightning.modeling.packed_forward import DYNAMIC_ROPES


@dataclass(frozen=True)
class Linear:
    """A linear layer that every transformer layer has once."""

    name: str
    inputs: int
    outputs: int
    has_bias: bool

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        return self.weights + self.outputs * self.has_bias


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model of Llama's kind, under the names of transformers' configurations."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False  # of queries and keys
    has_dynamic_rope: bool = False  # rotary embeddings that read the longest position

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear layers of a transformer layer: four of attention, three of the feed-forward part."""
        hidden, query, key, wide = self.hidden_size, self.query_size, self.key_size, self.intermediate_size
        return (
            Linear("q_proj", hidden, query, self.has_qkv_bias),
            Linear("k_proj", hidden, key, self.has_qkv_bias),
            Linear("v_proj", hidden, key, self.has_qkv_bias),
            Linear("o_proj", query, hidden, self.has_output_bias),
            Linear("gate_proj", hidden, wide, self.has_mlp_bias),
            Linear("up_proj", hidden, wide, self.has_mlp_bias),
            Linear("down_proj", wide, hidden, self.has_mlp_bias),
        )

    @property
    def linear_weights(self) -> int:
        """Weights of the linear layers of all transformer layers, which NF4 quantises; without biases."""
        return self.num_hidden_layers * sum(linear.weights for linear in self.linears)

    @property
    def embedding_parameters(self) -> int:
        """V·H, twice where the output embedding is not tied to the input's."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def parameters(self) -> int:
        """Embeddings + L·(linear layers + 2 norms of H, and 2 of a head's width where there are any) + a last norm."""
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.has_head_norms
        layer = sum(linear.parameters for linear in self.linears) + norms
        return self.embedding_parameters + self.num_hidden_layers * layer + self.hidden_size


def shape_of(config: PretrainedConfig, name: object = "") -> ModelShape:
    """The shape that a configuration describes.

    Args:
        config: of transformers.
        name: the model's, for the error.

    Raises:
        ConfigError: for a model that is not of Llama's kind.
    """
    kinds = ", ".join(_DIFFERENCES)
    remedy = f"its type is {config.model_type}, and estimates know {kinds} alone; name a model of these"
    require(config.model_type in _DIFFERENCES, "model.policy.model", name, remedy)
    return ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        has_dynamic_rope=config.rope_parameters["rope_type"] in DYNAMIC_ROPES,
        **_DIFFERENCES[config.model_type](config),
    )


# What the layers of each model type of `modeling.packed_forward` have beside those of a Mistral model
_DIFFERENCES: Mapping[str, Callable[[Any], dict[str, bool]]] = {
    "llama": lambda c: {
        "has_qkv_bias": c.attention_bias,
        "has_output_bias": c.attention_bias,
        "has_mlp_bias": c.mlp_bias,
    },
    "mistral": lambda c: {},
    "qwen2": lambda c: {"has_qkv_bias": True},
    "qwen3": lambda c: {
        "has_qkv_bias": c.attention_bias,
        "has_output_bias": c.attention_bias,
        "has_head_norms": True,
    },
    "seed_oss": lambda c: {
        "has_qkv_bias": c.attention_bias,
        "has_output_bias": c.attention_out_bias,
        "has_mlp_bias": c.mlp_bias,
    },
}
