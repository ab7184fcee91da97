"""Finds a model's shape and tokenizer on this machine, or in a table of published shapes. Loads no weights, and asks
the hub nothing."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerFast

from tsr_lightning.errors import require
from tsr_lightning.estimate.shape import ModelShape, shape_of
from tsr_lightning.policy.architecture import small_config
from tsr_lightning.policy.model_files import load_config, local_config_file
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer

# model name -> (model type, keys of its configuration), from the `config.json` of each model's page on the hub, such as
# https://huggingface.co/Qwen/Qwen2.5-3B-Instruct; their parameters are those that the pages state.
_QWEN = {"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768}
_QWEN3 = {
    **{"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    **{"vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 40960},
}
PUBLISHED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": (
        "qwen2",
        {**_QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": (
        "qwen2",
        {**_QWEN, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    ),
    "Qwen/Qwen2.5-3B-Instruct": (
        "qwen2",
        {**_QWEN, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        "qwen2",
        {
            **_QWEN,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
        },
    ),
    "Qwen/Qwen3-4B": ("qwen3", {**_QWEN3, "hidden_size": 2560, "intermediate_size": 9728}),
    "Qwen/Qwen3-8B": (
        "qwen3",
        {**_QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    ),
    "Qwen/Qwen3.5-0.8B": (
        "qwen3_5_text",  # without its part for images, which no policy has
        {
            **{"num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256},
            **{"linear_num_key_heads": 16, "linear_num_value_heads": 16, "max_position_embeddings": 262144},
            **{"hidden_size": 1024, "intermediate_size": 3584, "vocab_size": 248320, "tie_word_embeddings": True},
        },
    ),
    "LiquidAI/LFM2-1.2B": (
        "lfm2",
        {
            **{"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
            **{"hidden_size": 2048, "intermediate_size": 12288, "vocab_size": 65536, "tie_word_embeddings": True},
            "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
            "max_position_embeddings": 128000,
        },
    ),
}


def find_tokenizer(spec: PolicySpec, texts: Callable[[], Iterable[str]]) -> PreTrainedTokenizerFast | None:
    """The tokenizer of the spec's model; None where it is not on this machine.

    Args:
        spec: names the model.
        texts: of the environments, from which the vocabulary of a new model is made.
    """
    if isinstance(spec.model, Scratch):
        return load_tokenizer(spec, texts())
    config = local_config_file(spec.model)
    if config is None:
        return None
    if (config.parent / "tokenizer.json").is_file():
        return load_tokenizer(replace(spec, model=str(config.parent)), ())
    cached = try_to_load_from_cache(spec.model, "tokenizer.json") if not Path(spec.model).is_dir() else None
    return load_tokenizer(replace(spec, model=str(Path(cached).parent)), ()) if isinstance(cached, str) else None


def find_shape(spec: PolicySpec, tokenizer: PreTrainedTokenizerFast | None) -> tuple[ModelShape, str]:
    """The shape of the spec's model, and where it comes from.

    Raises:
        ConfigError: it is not on this machine and not among the published ones, or no layers of its type are known.
    """
    if isinstance(spec.model, Scratch):
        assert tokenizer is not None  # made from the environment's text
        return shape_of(small_config(spec.model, tokenizer), spec.model), "the sizes given"
    if (file := local_config_file(spec.model)) is not None:
        return shape_of(load_config(spec.model), spec.model), str(file)
    remedy = (
        f"its shape is neither in a folder here, nor in the hub's cache, nor among {', '.join(PUBLISHED)}; give a "
        "folder with its config.json"
    )
    require(spec.model in PUBLISHED, "model.policy.model", spec.model, remedy)
    return shape_of(published_config(spec.model)), "the table of published shapes"


def published_config(model: str) -> PretrainedConfig:
    """The configuration of a model of the table."""
    kind, values = PUBLISHED[model]
    return AutoConfig.for_model(kind, **values)
