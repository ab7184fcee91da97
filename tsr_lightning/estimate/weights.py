"""Bytes of weights, adapters, gradients and AdamW's states. Pure functions of a shape and a policy's configuration."""

from collections.abc import Sequence
from math import ceil

import torch

from tsr_lightning.errors import require
from tsr_lightning.estimate.layers import Linear
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.policy.checks import layers_without_adapter
from tsr_lightning.policy.spec import LoRA, PolicySpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ITEMSIZE = {name: dtype.itemsize for name, dtype in DTYPES.items()}
_BLOCK = 64  # weights that share a scale (bitsandbytes' default)
_NESTED_BLOCK = 256  # scales that share a scale of their own, under double quantisation


def nf4_bytes(elements: int, double_quant: bool) -> int:
    """Bytes of one layer's weights in NF4 (arXiv 2305.14314) as bitsandbytes lays them out.

    Half a byte per weight, rounded up, and the 16 levels in float32. A scale per 64 weights: 4 bytes, or under double
    quantisation 1, and then 4 per 256 scales, a table of 256 and an offset, all in float32.
    """
    scales = ceil(elements / _BLOCK)
    nested = scales + 4 * ceil(scales / _NESTED_BLOCK) + 4 * 256 + 4
    return ceil(elements / 2) + 4 * 16 + (nested if double_quant else 4 * scales)


def quantised_bytes(shape: ModelShape, spec: PolicySpec) -> int:
    """Bytes of the weights in NF4: those of the linear layers, not the embeddings; 0 without quantisation."""
    if spec.quantisation is None:
        return 0
    return sum(nf4_bytes(linear.weights, spec.quantisation.double_quant) for linear in shape.linears)


def plain_bytes(shape: ModelShape, spec: PolicySpec) -> int:
    """Bytes of what is not quantised: all parameters, or embeddings, norms and biases, in `spec.dtype`."""
    quantised = shape.linear_weights if spec.quantisation is not None else 0
    return (shape.parameters - quantised) * ITEMSIZE[spec.dtype]


def adapted(shape: ModelShape, adapter: LoRA, linears: Sequence[Linear]) -> list[Linear]:
    """Those of a model's linear layers that get an adapter.

    Raises:
        ConfigError: for a target that is no linear layer of the model.
    """
    refused = layers_without_adapter(shape.config.model_type)
    names = list(dict.fromkeys(linear.name for layer in shape.kinds for linear in layer.linears))
    targets = names if isinstance(adapter.target_modules, str) else adapter.target_modules
    for target in targets:
        remedy = f'estimates know {", ".join(names)} and "all-linear"; choose from these'
        require(_last(target) in names, "model.policy.adapter.target_modules", target, remedy)
    chosen = set(map(_last, targets)) - refused
    return [linear for linear in linears if linear.name in chosen]


def _last(target: str) -> str:
    """The name of a layer, of which a target may have the path too, as in "self_attn.q_proj"."""
    return target.rpartition(".")[2]


def adapter_parameters(shape: ModelShape, adapter: LoRA | None) -> int:
    """Σ r·(in + out) over the linear layers with an adapter (arXiv 2106.09685); 0 without one."""
    if adapter is None:
        return 0
    return sum(adapter.rank * (one.inputs + one.outputs) for one in adapted(shape, adapter, shape.linears))


def trained_bytes(shape: ModelShape, spec: PolicySpec) -> int:
    """Bytes of the policy's trained weights, which its gradient has again and AdamW twice more.

    An adapter is in float32. Without one all weights are trained in `spec.dtype`, and so are AdamW's averages.
    """
    if spec.adapter is None:
        return shape.parameters * ITEMSIZE[spec.dtype]
    return adapter_parameters(shape, spec.adapter) * ITEMSIZE["float32"]


def critic_bytes(shape: ModelShape) -> int:
    """Bytes of the value head: H weights and a bias in float32."""
    return 4 * (shape.hidden_size + 1)
