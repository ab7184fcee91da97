"""The engine's memory: cached prefixes, what is stored of them, and the attention over it."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsr_lightning.engines.local_model import Model, autocast_dtype
from tsr_lightning.engines.transformers.cuda_graphs import CudaGraphs, Direct, Replay
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVShape, KVStore, LayerShape
from tsr_lightning.engines.transformers.native_backend import NativeBackend, NativeDecode
from tsr_lightning.engines.transformers.state_store import StateCounts, StateStore
from tsr_lightning.engines.transformers.static_backend import StaticBackend, StaticDecode, StepRounding
from tsr_lightning.engines.transformers.torch_backend import TorchBackend, TorchDecode
from tsr_lightning.engines.transformers.trie import CachedSequence, Trie
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import ScoreParams, dot_product
from tsr_lightning.modeling.flex import HeadShape
from tsr_lightning.modeling.recurrence import MixerState, mixers, run_rows

_MIB = 2**20
STATE_CACHE_MIB = 2048
BUFFER_SHARE = 1 / 3  # of the memory, for the decode buffer of a backend that needs one


Decode = TorchDecode | NativeDecode | StaticDecode


def least_kv_cache_mib(shape: KVShape, tokens: int, buffer: float) -> int:
    """The least `kv_cache_mib` in which a prompt and its response fit.

    Args:
        shape: of what is stored of a token.
        tokens: of both.
        buffer: share of the memory that decoding has; 0 where it needs none.
    """
    of_buffer = shape.token_bytes / buffer if buffer else 0.0
    return int(tokens * max(shape.slot_bytes / (1 - buffer), of_buffer) / _MIB) + 1


class PrefixCache:
    """Trie, store and attention backend, in memory of a stated size.

    Args:
        model: whose keys and values are kept.
        kv_cache_mib: memory for them.
        context_tokens: most tokens of a prompt and its response.
        stream: captures decode steps; None on a CPU.
        state_cache_mib: memory for states, where layers are recurrent.
    """

    def __init__(
        self,
        model: Model,
        kv_cache_mib: int,
        context_tokens: int,
        stream: torch.cuda.Stream | None,
        state_cache_mib: int = STATE_CACHE_MIB,
    ) -> None:
        lm = model.causal_lm
        probe = _probe(lm)
        shape = probe.kv_shape
        self.device = lm.device
        self.precision = autocast_dtype(lm.device)
        kernels = packed_forward.kernels_of(lm)
        shared = {heads.heads // heads.key_heads for heads in probe.heads.values()}
        is_native = len(shared) == 1 and kernels.uses_native(lm.device, shape.dtype)
        is_uniform = len(set(probe.heads.values())) == 1 and not probe.states
        is_static = is_uniform and kernels.uses_flex(lm.device, next(iter(probe.heads.values())), gradients=False)
        rounding = StepRounding()
        buffer = 0.0 if is_native else BUFFER_SHARE
        buffer_tokens = int(kv_cache_mib * _MIB * buffer) // max(1, shape.token_bytes)
        slots = int(kv_cache_mib * _MIB * (1 - buffer)) // shape.slot_bytes - is_static
        needed = rounding.lengths.most(context_tokens) + 1 if is_static else context_tokens
        require(
            slots >= context_tokens and (is_native or buffer_tokens >= needed),
            "Transformers.kv_cache_mib",
            kv_cache_mib,
            f"a prompt and response of {context_tokens} tokens of this model do not fit, so give "
            f"{least_kv_cache_mib(shape, needed, buffer)} or more, or lower data.context_tokens",
        )
        self._slot_bytes = shape.slot_bytes
        self.trie = Trie(slots)
        self.store = KVStore(shape, slots, lm.device, spare=int(is_static))
        self.finished = np.zeros(slots, dtype=np.bool_)  # of each slot: whether its hidden state is the final one
        self.backend: TorchBackend | NativeBackend | StaticBackend
        if is_native:
            self.backend = NativeBackend(shared.pop())
        elif is_static:
            memory = DecodeBuffer(shape, buffer_tokens, lm.device)
            self.backend = StaticBackend(memory, _replay(lm, stream), rounding)
        else:
            self.backend = TorchBackend(DecodeBuffer(shape, buffer_tokens, lm.device))
        self.states: StateStore | None = None
        self.most_groups = self.most_rows = 2**62  # of responses that are sampled at once
        if probe.states:
            state_bytes = sum(tensor.nbytes for state in probe.states.values() for tensor in state.tensors())
            counts = StateCounts.within(state_cache_mib, state_bytes)
            self.states = StateStore(probe.states, counts.prefixes)
            self.most_groups, self.most_rows = counts.groups, counts.rows

    @property
    def used_bytes(self) -> int:
        """Memory of the slots and states that were used since the weights changed; a CPU has not touched the others."""
        return self.trie.used * self._slot_bytes + (0 if self.states is None else self.states.used_bytes)

    def clear(self) -> None:
        """Empties the cache: other weights give other keys."""
        self.trie.clear()
        if self.states is not None:
            self.states.clear()

    def reserve(self, count: int) -> None:
        """Makes slots free, whose prefixes lose their states."""
        evicted = self.trie.reserve(count)
        if self.states is not None:
            self.states.forget(evicted)

    def first_new(self, prompt: CachedSequence) -> int:
        """The place of the first token of a prompt that has to be computed, so that what follows can be."""
        return prompt.cached if self.states is None else self.states.last(prompt.slots)

    def starts(self, prompts: Sequence[CachedSequence]) -> list[int]:
        """The places of the prompts' first tokens that a pass computes, if each leaves out those of the ones before."""
        starts, computed = [], set[int]()
        for prompt in prompts:
            start = self.first_new(prompt)
            slots = prompt.slots[start:].tolist()
            new = next((i for i, slot in enumerate(slots) if slot not in computed), len(slots))
            computed.update(slots[new:])
            starts.append(start + new)
        return starts

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


def _probe(lm: PreTrainedModel) -> "_Probe":
    """Sizes are taken from a pass over two tokens."""
    probe, ids = _Probe(lm.dtype), torch.arange(2, device=lm.device)
    hidden = packed_forward.run_whole(lm.base_model, ids, ids, probe, probe if mixers(lm) else None)
    probe.hidden, probe.hidden_dtype = hidden.shape[-1], hidden.dtype
    return probe


class _Probe:
    """Records the shapes of each layer's queries, keys and values, and the states of mixers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.heads: dict[int, HeadShape] = {}
        self.states: dict[nn.Module, MixerState] = {}
        self.hidden, self.hidden_dtype = 0, dtype

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        if layer in self.heads:
            raise ConfigError(
                f"model.policy.model has two attentions in layer {layer}, for which the engine has no memory: use "
                "another model, or data.engine VLLM"
            )
        self.heads[layer] = HeadShape.of(query, value)
        return dot_product(query[None], key[None], value[None], None, scores, causal=True)[0].transpose(0, 1)

    def mix(self, mixer: nn.Module, hidden: Tensor) -> Tensor:
        if mixer in self.states:
            raise ConfigError(
                "model.policy.model has a recurrent layer that runs twice in a pass, for which the engine has no "
                "memory: use another model, or data.engine VLLM"
            )
        self.states[mixer] = MixerState()
        return run_rows(mixer, hidden[None], self.states[mixer])[0]

    @property
    def kv_shape(self) -> KVShape:
        shapes = {i: LayerShape(each.key_heads, each.width, each.value_width) for i, each in self.heads.items()}
        layers = tuple(shapes.get(i, LayerShape()) for i in range(max(shapes, default=-1) + 1))
        dtype = next((each.dtype for each in self.heads.values()), self.hidden_dtype)
        return KVShape(layers, dtype, self.hidden, self.hidden_dtype)
