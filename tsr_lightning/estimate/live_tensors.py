"""Counts the bytes of live tensors on any device: what a CUDA allocator is asked for, before it rounds."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensors(TorchDispatchMode):
    """Within a `with` block, the bytes of the tensors that were made in it: now, and at their highest.

    Tensors that share memory count once. What a kernel allocates and frees by itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.highest = 0
        self.operators = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        given = {id(tensor.untyped_storage()) for tensor in tree_iter((args, kwargs)) if isinstance(tensor, Tensor)}
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage(), given)
        return out

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        number, size = id(storage), storage.nbytes()
        if number in self._alive or number in given:
            return
        self._alive[number] = weakref.ref(storage, lambda _: self._remove(number, size))
        self.now += size
        self.highest = max(self.highest, self.now)

    def _remove(self, number: int, size: int) -> None:
        del self._alive[number]
        self.now -= size
