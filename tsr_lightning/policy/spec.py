"""The policy's configuration: which model is trained, and how. Knows configuration files, and no weights."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tsr_lightning.policy.exact_length import exact_length
from tsr_lightning.policy.model_files import config_file, load_config

DtypeName = Literal["float32", "bfloat16"]
KernelsName = Literal["auto", "torch", "native", "flex"]  # the values of modeling.kernels.Kernels

_UNLIMITED = 2**31 - 1  # for positions without a table, such as ALiBi's
# keys of a saved configuration that describe how it was saved, not the model
_SAVING_KEYS = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"})


@dataclass(frozen=True)
class Scratch:
    """A small Llama-style model with fresh weights, tied embeddings and a vocabulary of the environment's own text.

    Args:
        hidden_size: width of the residual stream.
        num_hidden_layers: number of transformer layers.
        num_attention_heads: attention heads of each layer; twice this number must divide the hidden size.
        intermediate_size: width of the feed-forward layers.
        max_position_embeddings: the longest context, in tokens.
    """

    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 384
    max_position_embeddings: int = 1024


@dataclass(frozen=True)
class LoRA:
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685) through peft; the base weights are frozen.

    Args:
        rank: rank of each update.
        alpha: an update is scaled by alpha / rank.
        target_modules: names of the layers that get an adapter, or "all-linear" for all but the output embedding.
        dropout: dropout of the adapter's input; above 0, the first update's ratio is not 1.
    """

    rank: int = 16
    alpha: int = 32
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    dropout: float = 0.0


@dataclass(frozen=True)
class NF4:
    """Base weights in 4 bits (Dettmers et al. 2023, arXiv 2305.14314) through bitsandbytes, on CPU and GPU alike.

    Args:
        double_quant: quantise the scales too.
        compute_dtype: type that the weights are dequantised to.
    """

    double_quant: bool = True
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"


@dataclass(frozen=True)
class PolicySpec:
    """A causal language model and how it is trained.

    Args:
        model: `embedded/` and a name (`tsr_lightning/policy/embedded/`); a folder, a name on the Hugging
            Face hub, or the sizes of a new small model.
        adapter: a LoRA adapter, or null to train all weights.
        quantisation: NF4 for base weights in 4 bits, or null.
        dtype: of the base weights that are not quantised; adapter and value head are always float32. bfloat16 needs an
            adapter: AdamW hardly moves weights of it.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
        kernels: of attention and layers. `native` builds C kernels for CPUs with this machine's compiler, `flex`
            compiles flex_attention for GPUs and replays decode steps as CUDA graphs, `torch` uses PyTorch's plain
            kernels, and `auto` uses `native` on a CPU and `flex` on a GPU where they work, else `torch`.
        response_prefix: text that every response begins with, such as `<think>` or `<answer>`. It ends the prompt, so
            it is not trained, and the environment and later prompts see it with the response.
        template_arguments: arguments of the chat template by name, such as `enable_thinking: false`.
    """

    model: str | Scratch
    adapter: LoRA | None = None
    quantisation: NF4 | None = None
    dtype: DtypeName = "float32"
    gradient_checkpointing: bool = False
    kernels: KernelsName = "auto"
    response_prefix: str = ""
    template_arguments: dict[str, Any] = field(default_factory=dict)


def is_quantised(spec: PolicySpec) -> bool:
    """True if the base weights are quantised, by the spec or in the model's files."""
    if isinstance(spec.model, Scratch):
        return False
    return spec.quantisation is not None or "quantization_config" in load_config(spec.model).to_dict()


def in_float32(spec: PolicySpec) -> bool:
    """True if all weights are float32."""
    return spec.dtype == "float32" and not is_quantised(spec)


def context_length(spec: PolicySpec) -> int:
    """The most tokens of the model's context, as far as its passes are exact here."""
    if isinstance(spec.model, Scratch):
        return spec.model.max_position_embeddings
    config = load_config(spec.model).get_text_config()
    exact = exact_length(config)
    try:
        positions = int(config.max_position_embeddings)
    except AttributeError:
        positions = _UNLIMITED
    return positions if exact is None else min(positions, exact.tokens)


def model_identity(spec: PolicySpec) -> dict[str, str | int | float]:
    """Plain values that a checkpoint and the model that loads it must have in common."""
    if isinstance(spec.model, Scratch):
        config: dict[str, Any] = asdict(spec.model)
    else:
        config = json.loads(config_file(spec.model).read_text(encoding="utf-8"))
        config = {key: value for key, value in config.items() if key not in _SAVING_KEYS}
    text = json.dumps(config, sort_keys=True)
    identity: dict[str, str | int | float] = {"config": hashlib.sha256(text.encode()).hexdigest()[:16]}
    if spec.adapter is None:
        return identity | {"adapter": "none"}
    targets = spec.adapter.target_modules
    return identity | {
        "adapter": "lora",
        "rank": spec.adapter.rank,
        "alpha": spec.adapter.alpha,
        "target_modules": targets if isinstance(targets, str) else " ".join(sorted(targets)),
    }
