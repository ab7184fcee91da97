"""4-bit weights at work. Imports bitsandbytes, and PyTorch's compiler by it, so import this only for such weights."""

import bitsandbytes
from torch import nn


def prevent_repacking(base: nn.Module) -> None:
    """Stops bitsandbytes from changing base weights in the first forward pass.

    On a CPU with AVX512-BF16 a forward pass in evaluation mode repacks the weights, which makes all later gradients
    wrong. On every machine the first forward pass casts the biases.
    """
    for module in base.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
            if module.bias is not None:
                module.bias.data = module.bias.data.to(module.compute_dtype)
