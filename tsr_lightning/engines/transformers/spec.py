"""The arguments of the default engine."""

from dataclasses import dataclass

from tsr_lightning.engines.base import EngineSpec
from tsr_lightning.engines.transformers.engine import Model, TransformersEngine


@dataclass(frozen=True)
class Transformers(EngineSpec):
    """The Hugging Face model itself, in this process, with a prefix cache.

    Args:
        kv_cache_mib: memory for keys, values and hidden states, in MiB; what does not fit is computed again.
        max_num_seqs: responses generated side by side; changes speed and memory, and no draw.
    """

    kv_cache_mib: int = 4096
    max_num_seqs: int = 512

    def build(self, model: Model, end_ids: frozenset[int], context_tokens: int) -> TransformersEngine:
        return TransformersEngine(model, end_ids, context_tokens, self.kv_cache_mib, self.max_num_seqs)
