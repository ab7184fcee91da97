"""What a linear layer is made of, so that packed passes can compute it otherwise than by calling it.

Who makes layers of another class, as peft does for adapters, registers how to read them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank addition to a weight: scaling * up @ down."""

    down: Tensor  # [r, I]
    up: Tensor  # [O, r]
    scaling: float


@dataclass(frozen=True, slots=True)
class LinearParts:
    """A linear layer."""

    weight: Tensor  # [O, I]
    bias: Tensor | None  # [O]
    adapter: Adapter | None = None


Reader = Callable[[Any], LinearParts | None]  # None where the layer has to be called as it is

_READERS: dict[type[nn.Module], Reader] = {nn.Linear: lambda layer: LinearParts(layer.weight, layer.bias)}


def register(kind: type[nn.Module], reader: Reader) -> None:
    """Makes `reader` read the layers of exactly this class."""
    _READERS[kind] = reader


def parts_of(layer: nn.Module) -> LinearParts | None:
    """The parts of a layer; None for one that has to be called, such as a quantised one."""
    reader = _READERS.get(type(layer))
    return reader(layer) if reader is not None else None
