"""Operators in PyTorch: those of a Llama-style layer without its attention, over N packed tokens, and of sampling."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class TorchOperators:
    """The products, norms, gates and rotations of a layer, and sums over the vocabulary, by PyTorch on any device.

    `native.native_operators` has the same methods.
    """

    def padded_rows(self, count: int) -> int:
        """Rows of a pass over so many tokens: more where that makes products of fewer shapes."""
        return count

    def linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        """[N, I] -> [N, O]."""
        return layer(x)

    def linear_add(self, layer: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        """layer(x) + other: [N, I], [N, O] -> [N, O]."""
        return other + layer(x)

    def gated(self, gate: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
        """silu(gate(x)) * up(x): [N, I] -> [N, O] (SwiGLU, arXiv 2002.05202)."""
        return functional.silu(gate(x)) * up(x)

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMSNorm over the last dimension (arXiv 1910.07467)."""
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotary embedding of the first N of x [_, H, D] by angles [N, D] (arXiv 2104.09864). May overwrite x."""
        first, second = x.chunk(2, dim=-1)
        return x * cosines[:, None] + torch.cat([-second, first], dim=-1) * sines[:, None]

    def block_sums(self, logits: Tensor, size: int, temperature: float) -> tuple[Tensor, Tensor]:
        """The highest logit of each row [U], and the sums [U, B] of e^((logit - highest) / temperature) over blocks of
        `size` of the V logits, of which the last may be shorter; both in float32."""
        wide = logits.float()
        highest = wide.amax(dim=-1)
        weights = wide - highest[:, None]
        weights = (weights if temperature == 1 else weights / temperature).exp_()
        missing = -logits.shape[1] % size
        blocks = functional.pad(weights, (0, missing)) if missing else weights
        return highest, blocks.view(len(blocks), -1, size).sum(dim=-1)
