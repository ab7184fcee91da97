"""Chooses the kernels of attention and layers: PyTorch's plain ones, flex_attention, or the optional C kernels of
modeling/native."""

import platform
from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from tsr_lightning.errors import require
from tsr_lightning.modeling import flex
from tsr_lightning.modeling.attention import PackedAttention
from tsr_lightning.modeling.flex import HeadShape
from tsr_lightning.modeling.native import building, kernel
from tsr_lightning.modeling.native.native_operators import NativeOperators
from tsr_lightning.modeling.native.training import NativeTrainingAttention
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.torch_operators import TorchOperators

Operators = TorchOperators | NativeOperators


class Kernels(Enum):
    """The choice of `model.policy.kernels`."""

    AUTO = "auto"  # NATIVE on a CPU and FLEX on a GPU where they can be built, else TORCH; the log says once which
    TORCH = "torch"  # nothing is built
    NATIVE = "native"  # the C kernels, and an error where they cannot be built
    FLEX = "flex"  # flex_attention and static decode steps, and an error where they cannot be built

    def check(self) -> None:
        """Raises a ConfigError if NATIVE is chosen and the C kernels cannot be built."""
        if self is Kernels.NATIVE:
            built = building.load()
            remedy = f"the C kernels cannot be built ({built.detail}): install a C compiler, or choose auto or torch"
            require(built.library is not None, "model.policy.kernels", self.value, remedy)

    def uses_native(self, device: torch.device, dtype: torch.dtype) -> bool:
        """True if the C kernels compute with such tensors: float32 or bfloat16 on a CPU."""
        may = self in (Kernels.AUTO, Kernels.NATIVE)
        return may and kernel.supports(device, dtype) and building.load().library is not None

    def uses_flex(self, device: torch.device, shape: HeadShape, *, gradients: bool) -> bool:
        """True if flex_attention computes with such tensors: under FLEX, and under AUTO on a GPU where it works. On a
        CPU it has no gradients.

        Raises:
            ConfigError: FLEX is chosen and does not work here.
        """
        if self is Kernels.AUTO:
            return device.type == "cuda" and flex.supports(device, shape) and flex.failure(device, shape) is None
        if self is not Kernels.FLEX or (gradients and device.type == "cpu"):
            return False
        remedy = f"flex_attention does not take {shape} on {device}, so choose auto or torch"
        require(flex.supports(device, shape), "model.policy.kernels", self.value, remedy)
        reason = flex.failure(device, shape)
        remedy = f"flex_attention does not work on {device} ({reason}), so choose auto or torch"
        require(reason is None, "model.policy.kernels", self.value, remedy)
        return True

    def operators(self, x: Tensor) -> Operators:
        """For layers whose input is like x, with gradients if they are enabled.

        Args:
            x: [N, H] the input.
        """
        if self.uses_native(x.device, x.dtype) and NativeOperators.supports(x):
            return NativeOperators()
        return TorchOperators()


def multiplies_bfloat16() -> bool:
    """True if this processor has instructions for products of bfloat16 (AVX512-BF16, AMX, or Arm's)."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_training_attention(segments: Sequence[Segment]) -> PackedAttention:
    """By the C kernels, for tensors that `Kernels.uses_native`."""
    return NativeTrainingAttention(segments)
