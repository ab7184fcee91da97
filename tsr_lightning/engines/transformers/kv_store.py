"""Memory for keys and values: one store for all cached prefixes, and a buffer for those that are being extended.

Both are allocated once and reused: on a CPU the first touch of new memory costs more than most products.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes of what a model stores per token."""

    layers: int
    heads: int  # of keys and values
    key_width: int
    value_width: int
    dtype: torch.dtype  # of keys and values
    hidden: int  # width of the last hidden state
    hidden_dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values in all layers."""
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize

    @property
    def slot_bytes(self) -> int:
        """Bytes of all that is stored."""
        return self.token_bytes + self.hidden * self.hidden_dtype.itemsize

    def per_layer(self, *size: int, device: torch.device) -> list[Tensor]:
        """Memory of this size for keys or values, one tensor per layer."""
        return [torch.empty(size, dtype=self.dtype, device=device) for _ in range(self.layers)]


class KVStore:
    """Keys, values and final hidden states of every slot, and of spare ones after them."""

    def __init__(self, shape: KVShape, capacity: int, device: torch.device, spare: int = 0) -> None:
        self.capacity = capacity
        self.keys = shape.per_layer(shape.heads, capacity + spare, shape.key_width, device=device)
        self.values = shape.per_layer(shape.heads, capacity + spare, shape.value_width, device=device)
        self.hidden = torch.empty(capacity + spare, shape.hidden, dtype=shape.hidden_dtype, device=device)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Slots [T]; key and value [K, T, D]."""
        self.keys[layer].index_copy_(1, slots, key)
        self.values[layer].index_copy_(1, slots, value)


class DecodeBuffer:
    """Memory for the sequence groups of one chunk, reused by the next.

    Args:
        shape: of a token.
        tokens: the most that it holds.
        device: of the memory.
    """

    def __init__(self, shape: KVShape, tokens: int, device: torch.device) -> None:
        self.tokens = tokens
        self.device = device
        self._shape = shape
        self._keys = shape.per_layer(tokens * shape.heads * shape.key_width, device=device)
        self._values = shape.per_layer(tokens * shape.heads * shape.value_width, device=device)

    def views(self, tokens: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of each layer, [K, tokens, D], at the front of the buffer."""
        heads = self._shape.heads
        return (
            [_front(flat, heads, tokens, self._shape.key_width) for flat in self._keys],
            [_front(flat, heads, tokens, self._shape.value_width) for flat in self._values],
        )


def _front(flat: Tensor, heads: int, tokens: int, width: int) -> Tensor:
    return flat[: heads * tokens * width].view(heads, tokens, width)
