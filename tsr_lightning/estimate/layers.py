"""Parts of transformer layers by kind: linear layers, further parameters, attention, and states. Pure functions of a
transformers configuration.

A layer is the sum of its parts. Multiplications and additions of a state are those of transformers' PyTorch code, which
scans a sequence chunk by chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_DELTA_CHUNK = 64  # tokens: the default of transformers' gated delta rule


@dataclass(frozen=True)
class Linear:
    """A linear layer."""

    name: str
    inputs: int
    outputs: int
    has_bias: bool = False

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        return self.weights + self.outputs * self.has_bias


@dataclass(frozen=True)
class Attention:
    """Sizes of a layer's attention."""

    heads: int
    key_heads: int
    width: int

    @property
    def query_size(self) -> int:
        return self.heads * self.width

    @property
    def key_size(self) -> int:
        return self.key_heads * self.width


@dataclass(frozen=True)
class State:
    """A layer's recurrent state: its elements, and FLOPs to update it."""

    convolution: int  # numbers in the model's dtype: inputs that a convolution still sees
    recurrent: int = 0  # numbers in float32
    flops: int = 0  # of a token: its convolution, and its share of a scan
    chunk: int = 1  # tokens of a scan's chunk


@dataclass(frozen=True)
class Layer:
    """A layer, or a part of one."""

    linears: tuple[Linear, ...] = ()
    others: tuple[tuple[int, int], ...] = ()  # [rows, columns] of norms, convolutions and scalars
    attention: Attention | None = None
    state: State | None = None

    def __add__(self, other: "Layer") -> "Layer":
        return Layer(
            self.linears + other.linears,
            self.others + other.others,
            self.attention or other.attention,
            self.state or other.state,
        )

    @property
    def linear_weights(self) -> int:
        return sum(linear.weights for linear in self.linears)

    @property
    def parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears) + sum(rows * columns for rows, columns in self.others)


Part = Callable[[Any], Layer]  # of a configuration


def norms(config: Any) -> Layer:
    """Two norms: before the mixer and before the feed-forward part."""
    return Layer(others=((config.hidden_size, 1),) * 2)


def head_width(config: Any) -> int:
    return int(config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads)


def attention(
    bias: Callable[[Any], bool] = lambda config: False,
    output_bias: Callable[[Any], bool] = lambda config: False,
    *,
    head_norms: bool = False,
    gated: bool = False,
    output: str = "o_proj",
) -> Part:
    """Queries, keys, values and output.

    Args:
        bias: of queries, keys and values.
        output_bias: of the output.
        head_norms: whether queries and keys are normalised.
        gated: whether a gate as wide as the queries comes from the same layer.
        output: name of the output layer.
    """

    def part(config: Any) -> Layer:
        hidden = config.hidden_size
        own = Attention(config.num_attention_heads, config.num_key_value_heads, head_width(config))
        return Layer(
            (
                Linear("q_proj", hidden, own.query_size * (1 + gated), bias(config)),
                Linear("k_proj", hidden, own.key_size, bias(config)),
                Linear("v_proj", hidden, own.key_size, bias(config)),
                Linear(output, own.query_size, hidden, output_bias(config)),
            ),
            ((own.width, 1),) * (2 * head_norms),
            own,
        )

    return part


def gated_mlp(
    bias: Callable[[Any], bool] = lambda config: False,
    width: Callable[[Any], int] = lambda config: config.intermediate_size,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Part:
    """A feed-forward part with a gate, of three linear layers."""

    def part(config: Any) -> Layer:
        hidden, wide, has_bias = config.hidden_size, width(config), bias(config)
        gate, up, down = names
        return Layer(
            (
                Linear(gate, hidden, wide, has_bias),
                Linear(up, hidden, wide, has_bias),
                Linear(down, wide, hidden, has_bias),
            )
        )

    return part


def shared_mlp(config: Any) -> Layer:
    """Granite's feed-forward part, whose gate and input are one linear layer."""
    hidden, wide = config.hidden_size, config.shared_intermediate_size
    return Layer((Linear("input_linear", hidden, 2 * wide), Linear("output_linear", wide, hidden)))


def lfm2_width(config: Any) -> int:
    """LFM2's feed-forward width, of which the configuration gives a multiple."""
    wide = int(config.intermediate_size)
    if not config.block_auto_adjust_ff_dim:
        return wide
    wide = 2 * wide // 3
    if config.block_ffn_dim_multiplier is None:
        return wide
    multiple = int(config.block_multiple_of)
    return -(-int(config.block_ffn_dim_multiplier * wide) // multiple) * multiple


def short_convolution(config: Any) -> Layer:
    """LFM2's convolution over a few tokens, with two gates (arXiv 2511.23404)."""
    hidden, kernel, bias = config.hidden_size, config.conv_L_cache, config.conv_bias
    return Layer(
        (Linear("in_proj", hidden, 3 * hidden, bias), Linear("out_proj", hidden, hidden, bias)),
        _convolution(hidden, kernel, has_bias=bias),
        state=State(hidden * kernel, flops=2 * hidden * kernel),
    )


def gated_delta_net(config: Any) -> Layer:
    """The gated delta rule (arXiv 2412.06464).

    A token's part of a chunk of C: two products of keys with C tokens, one of values, two solutions of a triangular
    system (C a number), and three products with the state.
    """
    hidden, heads, kernel = config.hidden_size, config.linear_num_value_heads, config.linear_conv_kernel_dim
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    channels = 2 * config.linear_num_key_heads * keys + heads * values
    scan = _DELTA_CHUNK * (4 * keys + 2 * values + keys + values) + 6 * keys * values
    return Layer(
        (
            Linear("in_proj_qkv", hidden, channels),
            Linear("in_proj_z", hidden, heads * values),
            Linear("in_proj_b", hidden, heads),
            Linear("in_proj_a", hidden, heads),
            Linear("out_proj", heads * values, hidden),
        ),
        (*_convolution(channels, kernel), (heads, 1), (heads, 1), (values, 1)),  # the step's bias, A, and a norm
        state=State(channels * kernel, heads * keys * values, heads * scan + 2 * channels * kernel, chunk=_DELTA_CHUNK),
    )


def mamba2(inner: Callable[[Any], int], output_bias: Callable[[Any], bool], has_norm: Callable[[Any], bool]) -> Part:
    """Mamba-2 (arXiv 2405.21060).

    A token's part of a chunk of C: two products with C tokens, of the state's width and of a head's, and two products
    with the state.

    Args:
        inner: width of all heads together.
        output_bias: of the output.
        has_norm: whether the output is normalised.
    """

    def part(config: Any) -> Layer:
        hidden, wide, heads = config.hidden_size, inner(config), config.mamba_n_heads
        width, numbers, kernel = config.mamba_d_head, config.mamba_d_state, config.mamba_d_conv
        channels, chunk = wide + 2 * config.mamba_n_groups * numbers, config.mamba_chunk_size
        scan = 2 * chunk * (numbers + width) + 4 * numbers * width
        return Layer(
            (
                Linear("in_proj", hidden, wide + channels + heads, config.mamba_proj_bias),
                Linear("out_proj", wide, hidden, output_bias(config)),
            ),
            (
                *_convolution(channels, kernel, has_bias=config.mamba_conv_bias),
                *((heads, 1),) * 3,  # the step's bias, A, and D
                *((wide, 1),) * has_norm(config),
            ),
            state=State(channels * kernel, heads * width * numbers, heads * scan + 2 * channels * kernel, chunk=chunk),
        )

    return part


def _convolution(channels: int, kernel: int, *, has_bias: bool = False) -> tuple[tuple[int, int], ...]:
    """The parameters of a convolution of each channel by itself."""
    return ((channels, kernel), *((channels, 1),) * has_bias)
