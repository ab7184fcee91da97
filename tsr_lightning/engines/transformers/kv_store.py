"""Memory for keys and values: one store for all cached prefixes, and a buffer for those that are being extended.

Both are allocated once and reused: on a CPU the first touch of new memory costs more than most products.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a layer's keys and values; zeros where it does not attend."""

    heads: int = 0  # of keys and values
    key_width: int = 0
    value_width: int = 0


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes of what a model stores per token."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype  # of keys and values
    hidden: int  # width of the last hidden state
    hidden_dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values in all layers."""
        return sum(each.heads * (each.key_width + each.value_width) for each in self.layers) * self.dtype.itemsize

    @property
    def slot_bytes(self) -> int:
        """Bytes of all that is stored."""
        return self.token_bytes + self.hidden * self.hidden_dtype.itemsize

    def memory(self, tokens: int, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Memory for keys and values, one tensor [K, tokens, D] per layer."""

        def empty(heads: int, width: int) -> Tensor:
            return torch.empty(heads, tokens, width, dtype=self.dtype, device=device)

        keys = [empty(each.heads, each.key_width) for each in self.layers]
        return keys, [empty(each.heads, each.value_width) for each in self.layers]


class KVStore:
    """Keys, values and final hidden states of every slot, and of spare ones after them."""

    def __init__(self, shape: KVShape, capacity: int, device: torch.device, spare: int = 0) -> None:
        self.capacity = capacity
        self.keys, self.values = shape.memory(capacity + spare, device)
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
        self._keys, self._values = shape.memory(tokens, device)

    def views(self, tokens: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of each layer, [K, tokens, D], at the front of the buffer."""
        return [_front(whole, tokens) for whole in self._keys], [_front(whole, tokens) for whole in self._values]


def _front(whole: Tensor, tokens: int) -> Tensor:
    heads, _, width = whole.shape
    return whole.view(-1)[: heads * tokens * width].view(heads, tokens, width)
