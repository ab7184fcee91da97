"""The engine's memory: cached prefixes, what is stored of them, and the attention over it."""

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
from tsr_lightning.errors import require
from tsr_lightning.modeling.kernels import Kernels

_MIB = 2**20
_BUFFER = 1 / 3  # of the memory is the decode buffer's, where the backend needs one


class PrefixCache:
    """Trie, store and attention backend, in memory of a stated size."""

    def __init__(
        self,
        shape: KVShape,
        vocabulary_size: int,
        precision: object,
        kv_cache_mib: int,
        context_tokens: int,
        device: torch.device,
        kernels: Kernels,
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.precision = precision
        is_native = kernels.uses_native(device, shape.dtype)
        buffer = 0.0 if is_native else _BUFFER
        buffer_tokens = int(kv_cache_mib * _MIB * buffer) // shape.token_bytes
        slots = int(kv_cache_mib * _MIB * (1 - buffer)) // shape.slot_bytes
        token_bytes = max(shape.slot_bytes / (1 - buffer), 0 if is_native else shape.token_bytes / buffer)
        require(
            slots >= context_tokens and (is_native or buffer_tokens >= context_tokens),
            "Transformers.kv_cache_mib",
            kv_cache_mib,
            f"a prompt and response of {context_tokens} tokens of this model do not fit, so give "
            f"{int(context_tokens * token_bytes / _MIB) + 1} or more, or lower data.context_tokens",
        )
        self.trie = Trie(slots)
        self.store = KVStore(shape, slots, device)
        self.finished = np.zeros(slots, dtype=np.bool_)  # of each slot: whether its hidden state is the final one
        self.backend: AttentionBackend = (
            NativeBackend() if is_native else TorchBackend(DecodeBuffer(shape, buffer_tokens, device))
        )

    def hidden(self, slots: Sequence[int]) -> Tensor:
        """The hidden states at slots [N, H]."""
        return self.store.hidden.index_select(0, torch.tensor(slots, device=self.store.hidden.device))

    def store_hidden(self, slots: NDArray[np.int64], hidden: Tensor, *, finished: bool) -> None:
        """Hidden states [N, H] at slots [N]: final ones, or those that `Model.finish` completes."""
        self.store.hidden.index_copy_(0, torch.from_numpy(slots).to(hidden.device), hidden)
        self.finished[slots] = finished
