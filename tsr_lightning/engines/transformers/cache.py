"""The engine's memory: which prefixes are kept, where their numbers lie, and who reads them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.backends import AttentionBackend
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVShape, KVStore
from tsr_lightning.engines.transformers.native_backend import NativeBackend
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.engines.transformers.trie import Trie
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.native import kernel

_MIB = 2**20
_BENCH = 1 / 3  # of the memory is for what is being extended, where that needs any; the rest keeps prefixes


class PrefixCache:
    """Trie and store of a stated size, and what reads them."""

    def __init__(
        self, shape: KVShape, vocabulary: int, precision: object, kv_cache_mib: int, longest: int, device: torch.device
    ) -> None:
        self.vocabulary = vocabulary
        self.precision = precision
        native = kernel.serves(device, shape.dtype)
        share = 0.0 if native else _BENCH
        bench = int(kv_cache_mib * _MIB * share) // shape.token_bytes
        slots = int(kv_cache_mib * _MIB * (1 - share)) // shape.slot_bytes
        if slots < longest or (not native and bench < longest):
            least = longest * max(shape.slot_bytes / (1 - share), shape.token_bytes / share if share else 0) / _MIB
            raise ConfigError(
                f"data.kv_cache_mib is {kv_cache_mib}, in which a prompt and response of {longest} tokens of this "
                f"model do not fit: give {int(least) + 1} or more, or lower data.context_tokens"
            )
        self.trie = Trie(slots)
        self.store = KVStore(shape, slots, device)
        self.finished = np.zeros(slots, dtype=np.bool_)  # of each slot: whether its hidden state is the last layer's
        self.readers: AttentionBackend = NativeBackend() if native else TorchBackend(DecodeBuffer(shape, bench, device))

    def take(self, slots: Sequence[int]) -> Tensor:
        """What is kept at slots [N, H]."""
        return self.store.hidden.index_select(0, torch.tensor(slots, device=self.store.hidden.device))

    def keep(self, slots: NDArray[np.int64], hidden: Tensor, *, finished: bool) -> None:
        """Hidden states [N, H] at slots [N]: those of the last layer, or what they will be made from."""
        self.store.hidden.index_copy_(0, torch.from_numpy(slots).to(hidden.device), hidden)
        self.finished[slots] = finished
