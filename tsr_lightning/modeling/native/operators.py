"""What a Llama-style layer does beside attention, on a CPU: products by oneDNN; norms, rotations, gates by layers.c.

PyTorch has oneDNN's products for bfloat16 and for compiled graphs, and multiplies by MKL else, which in float32 is a
seventh slower on a processor that is not Intel's. Gates and additions come with the product that they follow.

oneDNN compiles a product anew for every number of rows, and keeps a thousand of them, of up to some MiB each. So a pass
rounds its rows up to one of few numbers, a sixteenth more at most where it has more than 256.
"""

import ctypes
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.profiler import record_function

from tsr_lightning.modeling.native import kernel
from tsr_lightning.modeling.native.building import library


def serves(tensor: Tensor) -> bool:
    """Whether there is all of this for such a tensor: with gradients in float32 alone, in bfloat16 on processors for
    which oneDNN has products of it."""
    if not torch.backends.mkldnn.is_available() or not kernel.serves(tensor.device, tensor.dtype):
        return False
    if tensor.dtype == torch.float32:
        return True
    return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_STEP = 16  # the least between two numbers of rows from there on, and how many a power of two is away from the next


def rounded(count: int) -> int:
    """The next of few numbers of rows: the powers of two up to 16, the multiples of 16 up to 512, and 16 from each
    power of two to the next from there on."""
    below = 1 << max(count - 1, 0).bit_length() >> 1  # the largest power of two that is less
    if below < _STEP:
        return 2 * below or count
    step = max(_STEP, below // _STEP)
    return -(-count // step) * step


class Native:
    """The operators, with gradients where they are on."""

    def rows(self, count: int) -> int:
        return rounded(count)

    def linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        if not _is_plain(layer):
            return layer(x)
        if torch.is_grad_enabled():
            return _Linear.apply(x, layer.weight, layer.bias)
        return _product(x, layer.weight, layer.bias)

    def linear_plus(self, layer: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        if not _is_plain(layer) or torch.is_grad_enabled():
            return other + self.linear(layer, x)
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, layer.weight, layer.bias, "add")

    def gated(self, gate: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _Gated.apply(self.linear(gate, x), self.linear(up, x))
        if not _is_plain(gate) or not _is_plain(up):
            return nn.functional.silu(self.linear(gate, x)).mul_(self.linear(up, x))
        opened = _product(x, gate.weight, gate.bias, "swish")
        return torch.ops.mkldnn._linear_pointwise.binary(x, opened, up.weight, up.bias, "mul")

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        if torch.is_grad_enabled():
            return _Norm.apply(x, weight, epsilon)
        return _normed(x, weight, epsilon, None)

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """In place where there are no gradients."""
        if torch.is_grad_enabled():
            return _Rotate.apply(x, cosines, sines)
        x = x[: len(cosines)].contiguous()
        return _rotated(x, x, cosines, sines, back=False)


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Neither an adapter nor of four bits."""
    return type(layer) is nn.Linear


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    """x [N, I], weight [O, I] -> [N, O]."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")


def _call(name: str, *arguments: int | float | Tensor | None) -> None:
    """Of layers.c, whose numbers are all int64 or float; that of threads comes last."""
    kernels = library()
    assert kernels is not None
    with record_function(f"native::{name}"):
        kernels[name](*map(_told, (*arguments, torch.get_num_threads())))


def _told(argument: int | float | Tensor | None) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int64(argument) if isinstance(argument, int) else ctypes.c_float(argument)


def _normed(x: Tensor, weight: Tensor, epsilon: float, scales: Tensor | None) -> Tensor:
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    _call("norm", x, weight, out, scales, x.numel() // width, width, epsilon, kernel.KINDS[x.dtype])
    return out


def _rotated(x: Tensor, out: Tensor, cosines: Tensor, sines: Tensor, *, back: bool) -> Tensor:
    """As many rows as there are angles of."""
    rows, (_, heads, width) = len(cosines), x.shape
    _call("rotate", x, out, cosines, sines, rows, heads, width, int(back), kernel.KINDS[x.dtype])
    return out


class _Linear(torch.autograd.Function):
    """The gradient of the weight, a product over tokens, is MKL's: it is the faster there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        asked = ctx.needs_input_grad
        gradient = gradient.contiguous()
        return (
            _product(gradient, weight.t(), None) if asked[0] else None,
            gradient.t() @ x if asked[1] else None,
            gradient.sum(0) if asked[2] else None,
        )


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        _call("gated", gate, up, out, gate.numel())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        backs = torch.empty_like(gate), torch.empty_like(up)
        _call("gated_back", gradient.contiguous(), gate, up, *backs, gate.numel())
        return backs


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x = x.contiguous()
        scales = x.new_empty(x.shape[:-1])
        ctx.save_for_backward(x, weight, scales)
        return _normed(x, weight, epsilon, scales)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        back = torch.empty_like(x)
        weight_back = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        width = x.shape[-1]
        _call("norm_back", gradient.contiguous(), x, weight, scales, back, weight_back, x.numel() // width, width)
        return back, weight_back, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        ctx.rows = len(x)
        x = x.contiguous()
        return _rotated(x, x.new_empty(len(cosines), *x.shape[1:]), cosines, sines, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cosines, sines = ctx.saved_tensors
        gradient = gradient.contiguous()
        back = gradient.new_empty(ctx.rows, *gradient.shape[1:])
        back[len(gradient) :].zero_()
        return _rotated(gradient, back, cosines, sines, back=True), None, None
