"""Operators on a CPU: linear layers by oneDNN; norms, rotary embeddings and gates by layers.c; sums over the vocabulary
by sampling.c.

PyTorch uses oneDNN for bfloat16 and for compiled graphs, and MKL otherwise, which in float32 is a seventh slower on
processors that are not Intel's. Gates and additions are fused with the product before them.

oneDNN compiles a product for every number of rows, of up to some MiB each, and by default keeps a thousand. So a pass
pads its rows to one of few numbers, by at most a sixteenth where it has more than 256, and the last 300 are kept.
"""

import ctypes
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tsr_lightning.modeling.linear_parts import Adapter, LinearParts, parts_of
from tsr_lightning.modeling.native import kernel
from tsr_lightning.modeling.native.building import load
from tsr_lightning.modeling.native.profiled import recorded

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "300")  # read at the first product
_STEP = 16  # the least step between numbers of rows, and the steps from one power of two to the next


def padded_rows(count: int) -> int:
    """The next of few numbers of rows: the powers of two up to 16, the multiples of 16 up to 512, and 16 from each
    power of two to the next from there on."""
    below = 1 << max(count - 1, 0).bit_length() >> 1  # the largest power of two that is less
    if below < _STEP:
        return 2 * below or count
    step = max(_STEP, below // _STEP)
    return -(-count // step) * step


class NativeOperators:
    """The operators, with gradients if they are enabled."""

    @staticmethod
    def supports(x: Tensor) -> bool:
        """float32, and bfloat16 on processors for which oneDNN has products."""
        if not torch.backends.mkldnn.is_available():
            return False
        return x.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def padded_rows(self, count: int) -> int:
        return padded_rows(count)

    def linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        parts = parts_of(layer)
        if parts is None:
            return layer(x)
        if parts.adapter is not None:
            return self._adapted(x, parts, parts.adapter, None)
        if torch.is_grad_enabled():
            return _Linear.apply(x, parts.weight, parts.bias)
        return _product(x, parts.weight, parts.bias)

    def linear_add(self, layer: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        parts = parts_of(layer)
        if parts is not None and parts.adapter is not None:
            return self._adapted(x, parts, parts.adapter, other)
        if parts is None or torch.is_grad_enabled():
            return other + self.linear(layer, x)
        return _product_add(x, parts.weight, parts.bias, other)

    def gated(self, gate: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _Gated.apply(self.linear(gate, x), self.linear(up, x))
        of_gate, of_up = parts_of(gate), parts_of(up)
        if of_gate is None or of_up is None or of_gate.adapter is not None or of_up.adapter is not None:
            return _gated(self.linear(gate, x), self.linear(up, x))
        activated = _product(x, of_gate.weight, of_gate.bias, "swish")
        return torch.ops.mkldnn._linear_pointwise.binary(x, activated, of_up.weight, of_up.bias, "mul")

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        if torch.is_grad_enabled():
            return _Norm.apply(x, weight, epsilon)
        return _norm(x, weight, epsilon, None)

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """In place without gradients."""
        if torch.is_grad_enabled():
            return _Rotate.apply(x, cosines, sines)
        if x.shape[0] != cosines.shape[0]:
            x = x[: cosines.shape[0]]
        x = x.contiguous()
        return _rotate(x, x, cosines, sines, inverse=False)

    def block_sums(self, logits: Tensor, size: int, temperature: float) -> tuple[Tensor, Tensor]:
        logits = logits.contiguous()
        rows, width = logits.shape
        highest, sums = torch.empty(rows), torch.empty(rows, -(-width // size))
        _call("block_sums", logits, highest, sums, rows, width, size, float(temperature), kernel.DTYPES[logits.dtype])
        return highest, sums

    def _adapted(self, x: Tensor, parts: LinearParts, adapter: Adapter, other: Tensor | None) -> Tensor:
        """x weight^T + scaling x down^T up^T (+ other): [N, I] -> [N, O]. The scaling is folded into `down`, so that
        the wide output is written by one product, which adds the adapter's part."""
        if torch.is_grad_enabled():
            return _AdaptedLinear.apply(x, parts.weight, parts.bias, adapter.down, adapter.up, adapter.scaling, other)
        low = x @ _scaled(adapter.down, adapter.scaling, x).t()
        return _product_add(x, parts.weight, parts.bias, _raised(low, adapter.up.to(x.dtype), other))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    """x [N, I], weight [O, I] -> [N, O]."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")


def _product_add(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
    """The product and `other` [N, O], rounded once."""
    return torch.ops.mkldnn._linear_pointwise.binary(x, other, weight, bias, "add")


def _scaled(down: Tensor, scaling: float, x: Tensor) -> Tensor:
    return (down * scaling).to(x.dtype)


def _raised(low: Tensor, up: Tensor, other: Tensor | None) -> Tensor:
    """low up^T (+ other): [N, r], [O, r] -> [N, O]."""
    return low @ up.t() if other is None else torch.addmm(other, low, up.t())


_TENSOR, _INTEGER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {  # of the functions of layers.c and sampling.c, without the number of threads
    "block_sums": [_TENSOR] * 3 + [_INTEGER] * 3 + [_FLOAT, _INTEGER],
    "norm": [_TENSOR] * 4 + [_INTEGER] * 2 + [_FLOAT, _INTEGER],
    "norm_backward": [_TENSOR] * 6 + [_INTEGER] * 3,
    "rotate": [_TENSOR] * 4 + [_INTEGER] * 5,
    "gated": [_TENSOR] * 3 + [_INTEGER] * 2,
    "gated_backward": [_TENSOR] * 5 + [_INTEGER] * 2,
}


@cache
def _function(name: str) -> Any:
    """A function of these files, looked up once: there are hundreds of calls in a decode step."""
    library = load().library
    assert library is not None
    function = library[name]
    function.argtypes, function.restype = [*_ARGUMENTS[name], _INTEGER], None
    return function


def _call(name: str, *arguments: int | float | Tensor | None) -> None:
    """Calls a function of layers.c or sampling.c."""
    given = [_address(each) if isinstance(each, Tensor) else each for each in arguments]
    with recorded(name):
        _function(name)(*given, torch.get_num_threads())


def _address(tensor: Tensor) -> int:
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _norm(x: Tensor, weight: Tensor, epsilon: float, scales: Tensor | None) -> Tensor:
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    _call("norm", x, weight, out, scales, x.numel() // width, width, epsilon, kernel.DTYPES[x.dtype])
    return out


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    assert (gate.dtype, gate.shape) == (up.dtype, up.shape)
    out = torch.empty_like(gate)
    _call("gated", gate, up, out, gate.numel(), kernel.DTYPES[gate.dtype])
    return out


def _rotate(x: Tensor, out: Tensor, cosines: Tensor, sines: Tensor, *, inverse: bool) -> Tensor:
    """Rotates as many rows as there are angles."""
    rows, (_, heads, width) = cosines.shape[0], x.shape
    _call("rotate", x, out, cosines, sines, rows, heads, width, int(inverse), kernel.DTYPES[x.dtype])
    return out


class _Linear(torch.autograd.Function):
    """The weight's gradient, a product over tokens, is MKL's, which is faster there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        gradient = gradient.contiguous()
        return (
            _product(gradient, weight.t(), None) if for_x else None,
            gradient.t() @ x if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


class _AdaptedLinear(torch.autograd.Function):
    """Products are in the type of x, the adapter's weights and their gradients in their own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scaling: float,
        other: Tensor | None,
    ) -> Tensor:
        scaled, raising = _scaled(down, scaling, x), up.to(x.dtype)
        low = x @ scaled.t()
        ctx.save_for_backward(x, weight, scaled, raising, low)
        ctx.scaling, ctx.dtype = scaling, down.dtype
        return _product_add(x, weight, bias, _raised(low, raising, other))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scaled, raising, low = ctx.saved_tensors
        for_x, for_weight, for_bias, *_, for_other = ctx.needs_input_grad
        gradient = gradient.contiguous()
        of_low = gradient @ raising
        return (
            _product_add(gradient, weight.t(), None, of_low @ scaled) if for_x else None,
            gradient.t() @ x if for_weight else None,
            gradient.sum(0) if for_bias else None,
            (of_low.t() @ x).to(ctx.dtype) * ctx.scaling,
            (gradient.t() @ low).to(ctx.dtype),
            None,
            gradient if for_other else None,
        )


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return _gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gradients = torch.empty_like(gate), torch.empty_like(up)
        _call("gated_backward", gradient.contiguous(), gate, up, *gradients, gate.numel(), kernel.DTYPES[gate.dtype])
        return gradients


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x = x.contiguous()
        scales = x.new_empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, scales)
        return _norm(x, weight, epsilon, scales)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        of_x = torch.empty_like(x)
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        sizes = x.numel() // x.shape[-1], x.shape[-1], kernel.DTYPES[x.dtype]
        _call("norm_backward", gradient.contiguous(), x, weight, scales, of_x, of_weight, *sizes)
        return of_x, of_weight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        ctx.rows = len(x)
        x = x.contiguous()
        return _rotate(x, x.new_empty(len(cosines), *x.shape[1:]), cosines, sines, inverse=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cosines, sines = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_x = gradient.new_empty(ctx.rows, *gradient.shape[1:])
        of_x[len(gradient) :].zero_()
        return _rotate(gradient, of_x, cosines, sines, inverse=True), None, None
