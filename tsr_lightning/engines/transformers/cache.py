"""The engine's memory: cached prefixes, what is stored of them, and the attention over it."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from tsr_lightning.engines.local_model import Model, autocast_dtype
from tsr_lightning.engines.transformers.cuda_graphs import CudaGraphs, Direct, Replay
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVShape, KVStore
from tsr_lightning.engines.transformers.native_backend import NativeBackend, NativeDecode
from tsr_lightning.engines.transformers.static_backend import StaticBackend, StaticDecode, StepRounding
from tsr_lightning.engines.transformers.torch_backend import TorchBackend, TorchDecode
from tsr_lightning.engines.transformers.trie import Trie
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import ScoreParams, dot_product
from tsr_lightning.modeling.flex import HeadShape

_MIB = 2**20
BUFFER_SHARE = 1 / 3  # of the memory, for the decode buffer of a backend that needs one


Decode = TorchDecode | NativeDecode | StaticDecode


class PrefixCache:
    """Trie, store and attention backend, in memory of a stated size.

    Args:
        model: whose keys and values are kept.
        kv_cache_mib: memory for them.
        context_tokens: most tokens of a prompt and its response.
        stream: captures decode steps; None on a CPU.
    """

    def __init__(self, model: Model, kv_cache_mib: int, context_tokens: int, stream: torch.cuda.Stream | None) -> None:
        lm = model.causal_lm
        shape, heads = _shapes_of(lm)
        self.device = lm.device
        self.precision = autocast_dtype(lm.device)
        kernels = packed_forward.kernels_of(lm)
        is_native = kernels.uses_native(lm.device, shape.dtype)
        is_static = kernels.uses_flex(lm.device, heads, gradients=False)
        rounding = StepRounding()
        buffer = 0.0 if is_native else BUFFER_SHARE
        buffer_tokens = int(kv_cache_mib * _MIB * buffer) // shape.token_bytes
        slots = int(kv_cache_mib * _MIB * (1 - buffer)) // shape.slot_bytes - is_static
        needed = rounding.lengths.most(context_tokens) + 1 if is_static else context_tokens
        token_bytes = max(shape.slot_bytes / (1 - buffer), 0 if is_native else shape.token_bytes / buffer)
        require(
            slots >= context_tokens and (is_native or buffer_tokens >= needed),
            "Transformers.kv_cache_mib",
            kv_cache_mib,
            f"a prompt and response of {context_tokens} tokens of this model do not fit, so give "
            f"{int(needed * token_bytes / _MIB) + 1} or more, or lower data.context_tokens",
        )
        self._slot_bytes = shape.slot_bytes
        self.trie = Trie(slots)
        self.store = KVStore(shape, slots, lm.device, spare=int(is_static))
        self.finished = np.zeros(slots, dtype=np.bool_)  # of each slot: whether its hidden state is the final one
        self.backend: TorchBackend | NativeBackend | StaticBackend
        if is_native:
            self.backend = NativeBackend(heads.heads // heads.key_heads)
        elif is_static:
            memory = DecodeBuffer(shape, buffer_tokens, lm.device)
            self.backend = StaticBackend(memory, _replay(lm, stream), rounding)
        else:
            self.backend = TorchBackend(DecodeBuffer(shape, buffer_tokens, lm.device))

    @property
    def used_bytes(self) -> int:
        """Memory of the slots that were used since the weights changed; a CPU has not touched the others."""
        return self.trie.used * self._slot_bytes

    def hidden(self, slots: Sequence[int]) -> Tensor:
        """The hidden states at slots [N, H]."""
        return self.store.hidden.index_select(0, torch.tensor(slots, device=self.device))

    def store_hidden(self, slots: NDArray[np.int64], hidden: Tensor, *, finished: bool) -> None:
        """Hidden states [N, H] at slots [N]: final ones, or those that `packed_forward.finish` completes."""
        self.store.hidden.index_copy_(0, torch.from_numpy(slots).to(self.device), hidden)
        self.finished[slots] = finished


def _replay(lm: PreTrainedModel, stream: torch.cuda.Stream | None) -> Replay:
    """Returns what runs decode steps again on the model's device. PyTorch's deterministic writes wait for the device,
    which a capture cannot hold."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    if stream is not None and packed_forward.is_capturable(lm.base_model) and not deterministic:
        return CudaGraphs(stream)
    return Direct()


def _shapes_of(lm: PreTrainedModel) -> tuple[KVShape, HeadShape]:
    """Sizes are taken from a pass over two tokens."""
    probe, ids = _ShapeProbe(), torch.arange(2, device=lm.device)
    hidden = packed_forward.run_whole(lm.base_model, ids, ids, probe)
    layers = lm.config.get_text_config().num_hidden_layers
    distinct = {(of_layer.key_heads, of_layer.width, of_layer.value_width, of_layer.dtype) for of_layer in probe.shapes}
    if len(probe.shapes) != layers or len(distinct) != 1:
        raise ConfigError(
            f"model.policy.model attends in {len(probe.shapes)} of {layers} layers, in {len(distinct)} shapes: use a "
            "model in which all layers attend, in the same shape"
        )
    heads = probe.shapes[0]
    shape = KVShape(
        layers, heads.key_heads, heads.width, heads.value_width, heads.dtype, hidden.shape[-1], hidden.dtype
    )
    return shape, heads


class _ShapeProbe:
    """Records the shapes of queries, keys and values of each layer."""

    def __init__(self) -> None:
        self.shapes: list[HeadShape] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self.shapes.append(HeadShape.of(query, value))
        return dot_product(query[None], key[None], value[None], None, scores, causal=True)[0].transpose(0, 1)
