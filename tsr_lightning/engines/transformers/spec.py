"""The default engine's settings."""

from dataclasses import dataclass

from tsr_lightning.engines.base import EngineSpec
from tsr_lightning.engines.local_model import Model
from tsr_lightning.engines.transformers.cache import STATE_CACHE_MIB
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.errors import require

KV_CACHE_MIB = 4096


@dataclass(frozen=True)
class Transformers(EngineSpec):
    """The Hugging Face model itself, in this process, with a prefix cache.

    Args:
        kv_cache_mib: memory for keys, values and hidden states, in MiB; what does not fit is computed again, with the
            same results. null: `tsr` chooses by model and memory; without it, 4,096.
        max_num_seqs: the most responses sampled at once; changes speed and memory, and no sample.
        state_cache_mib: memory for the states of a model's recurrent layers, half of it for prefixes and half for
            responses that are sampled at once. What does not fit is computed again, with the same results. A model
            without such layers takes none.
    """

    kv_cache_mib: int | None = KV_CACHE_MIB
    max_num_seqs: int = 512
    state_cache_mib: int = STATE_CACHE_MIB

    @property
    def cache_mib(self) -> int:
        """`kv_cache_mib`, or the default where it is null."""
        return KV_CACHE_MIB if self.kv_cache_mib is None else self.kv_cache_mib

    def __post_init__(self) -> None:
        require(self.cache_mib > 0, "Transformers.kv_cache_mib", self.kv_cache_mib, "give 1 or more, or null")
        require(self.max_num_seqs > 0, "Transformers.max_num_seqs", self.max_num_seqs, "give 1 or more")
        require(self.state_cache_mib > 0, "Transformers.state_cache_mib", self.state_cache_mib, "give 1 or more")

    def build(self, model: Model, end_ids: frozenset[int], context_tokens: int) -> TransformersEngine:
        return TransformersEngine(
            model, end_ids, context_tokens, self.cache_mib, self.max_num_seqs, self.state_cache_mib
        )
