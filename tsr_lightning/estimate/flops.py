"""Floating-point operations of passes through a model. Pure functions; a multiplication and an addition are two.

Norms, rotations, gates and softmaxes are left out: they are bound by memory, and a hundredth of the products.
"""

from dataclasses import dataclass

from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.estimate.weights import adapted, adapter_parameters
from tsr_lightning.policy.spec import PolicySpec


@dataclass(frozen=True)
class Flops:
    """Operations of the base model, in its compute dtype, and of an adapter, always in float32."""

    base: float
    adapter: float = 0.0

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.base + other.base, self.adapter + other.adapter)

    @property
    def total(self) -> float:
        return self.base + self.adapter


def attention_flops(shape: ModelShape, scores: float) -> float:
    """Two products of a head's width per score, head and layer that attends: queries with keys, weights with values."""
    attending = [(layer.attention, count) for layer, count in shape.kinds.items() if layer.attention]
    return 4.0 * scores * sum(count * attention.query_size for attention, count in attending)


def state_flops(shape: ModelShape, tokens: float) -> float:
    """Convolutions and scans of the layers that carry a state. A decoding step, which takes no chunk, has fewer."""
    return tokens * sum(count * layer.state.flops for layer, count in shape.kinds.items() if layer.state)


def forward_flops(shape: ModelShape, spec: PolicySpec, tokens: float, outputs: float, scores: float) -> Flops:
    """2·W·T of the linear layers, 2·V·H·N of the output embedding, and attention (arXiv 2001.08361, section 2.1).

    Args:
        shape: of the model.
        spec: says whether there is an adapter.
        tokens: T, through the layers.
        outputs: N, whose logits are computed.
        scores: products of a query and a key, per head and layer.
    """
    linear = 2.0 * shape.linear_weights * tokens
    head = 2.0 * shape.vocab_size * shape.hidden_size * outputs
    adapter = 2.0 * adapter_parameters(shape, spec.adapter) * tokens
    return Flops(linear + head + attention_flops(shape, scores) + state_flops(shape, tokens), adapter)


def update_flops(
    shape: ModelShape, spec: PolicySpec, tokens: float, outputs: float, scores: float, *, chunked: bool
) -> Flops:
    """A forward and a backward pass.

    Linear layers: one product forward, one for the gradient of the input, one for that of trained weights, and one
    more forward under checkpoints, where PyTorch stops before the last product of a layer, which nothing needs.
    Attention: two products forward, five backward, as flash attention computes the weights again (arXiv 2307.08691,
    section 3.1). States: each product of a scan has two for its gradients.

    Args:
        shape: of the model.
        spec: adapter and checkpoints.
        tokens: T.
        outputs: N.
        scores: products of a query and a key.
        chunked: whether logits are scored in chunks, which are computed again.
    """
    again = int(spec.gradient_checkpointing)
    trains_all = int(spec.adapter is None)
    last = [layer.linears[-1] for layer in shape.layers]
    skipped, skipped_adapter = trains_all * sum(linear.weights for linear in last), 0
    if spec.adapter is not None:
        skipped_adapter = sum(spec.adapter.rank * linear.outputs for linear in adapted(shape, spec.adapter, last))
    linear = 2.0 * tokens * (shape.linear_weights * (2 + again + trains_all) - again * skipped)
    head = 2.0 * shape.vocab_size * shape.hidden_size * outputs * (2 + int(chunked) + trains_all)
    attention = attention_flops(shape, scores) * (1 + 2.5 + again)
    adapter = 2.0 * tokens * (adapter_parameters(shape, spec.adapter) * (3 + again) - again * skipped_adapter)
    states = state_flops(shape, tokens) * (3 + again)
    return Flops(linear + head + attention + states, adapter)
