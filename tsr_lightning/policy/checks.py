"""Validates a policy's configuration before any weights are loaded."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.modeling import attention
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.recurrence import LEAST_TRANSFORMERS, mixers
from tsr_lightning.policy.model_files import config_file, load_config, location
from tsr_lightning.policy.spec import LoRA, PolicySpec, Scratch, is_quantised

# Types with recurrent layers whose state packed sequences cannot hand on: those of Mamba-1 take one up for a single
# token alone (transformers 5.23). `probe.py` finds others after loading.
_OTHERS = {  # types that cannot be trained here, and why
    "doge": "it weighs keys in a mask that packed sequences do not have",
    "phimoe": "its router draws at random in training, so that ratios of probabilities would be noise",
}
_RECURRENT = {"falcon_mamba", "jamba", "mamba", "recurrent_gemma", "rwkv", "xlstm", "zamba"}
KNOWN = "docs/model_types.md has the types that work, such as qwen3_5_text, lfm2, granitemoehybrid and nemotron_h"
_MAMBA = {"falcon_h1", "mamba2", "nemotron_h"}  # types in which peft refuses adapters of these layers
_WITHOUT_ADAPTER = frozenset({"conv1d", "out_proj"})
_LONGEST_PREFIX = 48
_FEWEST_ENTRIES = 0.1  # of a tokenizer, as a share of the rows of an embedding
_WEIGHTS = "model.safetensors"
_SHARDS = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check(spec: PolicySpec) -> None:
    """Raises a ConfigError for the first mistake in a spec."""
    Kernels(spec.kernels).check()
    remedy = f"give at most {_LONGEST_PREFIX} bytes, for which prompts have room"
    require(
        len(spec.response_prefix.encode()) <= _LONGEST_PREFIX,
        "model.policy.response_prefix",
        spec.response_prefix,
        remedy,
    )
    if spec.quantisation:
        remedy = "4-bit weights cannot be trained, so give model.policy.adapter a LoRA, or set this to null"
        require(spec.adapter is not None, "model.policy.quantisation", spec.quantisation, remedy)
    if spec.adapter:
        _check_adapter(spec.adapter)
    remedy = (
        "AdamW hardly moves bfloat16 weights (2% of the movement asked for at a learning rate of 1e-6), so take "
        "float32, with trainer.precision bf16-mixed for speed, or give model.policy.adapter a LoRA"
    )
    require(spec.dtype == "float32" or spec.adapter is not None, "model.policy.dtype", spec.dtype, remedy)
    if isinstance(spec.model, Scratch):
        _check_sizes(spec.model)
        remedy = "a new model has to train all its weights, so set this to null"
        require(spec.quantisation is None, "model.policy.quantisation", spec.quantisation, remedy)
        return
    _check_files(spec.model)
    config = load_config(spec.model)
    remedy = f"its type is {config.model_type}, so name a causal language model instead"
    is_decoder = config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder
    is_known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    require(is_known and is_decoder, "model.policy.model", spec.model, remedy)
    remedy = f"of type {config.model_type}, its layers carry a state that leaks between packed sequences; {KNOWN}"
    require(config.model_type not in _RECURRENT, "model.policy.model", spec.model, remedy)
    remedy = f"of type {config.model_type}, {_OTHERS.get(config.model_type)}; {KNOWN}"
    require(config.model_type not in _OTHERS, "model.policy.model", spec.model, remedy)
    remedy = "its weights are quantised and cannot be trained, so give model.policy.adapter a LoRA, or other weights"
    require(spec.adapter is not None or not is_quantised(spec), "model.policy.model", spec.model, remedy)
    layers = _layers(config)
    if mixers(layers[""]):
        _check_transformers(spec.model)
    if spec.adapter and spec.adapter.target_modules != "all-linear":
        _check_target_modules(spec.adapter.target_modules, layers, config.model_type)


def _check_transformers(model: str) -> None:
    """Refuses hybrid models under older versions of transformers, where packed passes crash or are wrong."""
    least = ".".join(map(str, LEAST_TRANSFORMERS))
    remedy = (
        f"its layers carry a state, which takes transformers {least} or newer, and {transformers.__version__} is "
        f"installed: pip install --upgrade 'transformers>={least},<6'"
    )
    installed = tuple(map(int, transformers.__version__.split(".")[:2]))
    require(installed >= LEAST_TRANSFORMERS, "model.policy.model", model, remedy)


def check_tokenizer(spec: PolicySpec, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuses another model's tokenizer by the rows that config.json gives the embedding: too few, or ten times as many
    as it has entries, where an embedding is a few per cent larger than its vocabulary at most."""
    if isinstance(spec.model, Scratch):
        return
    rows = load_config(spec.model).get_text_config().to_dict().get("vocab_size", len(tokenizer))
    check_vocabulary(spec, tokenizer, rows, least=_FEWEST_ENTRIES)


def check_vocabulary(spec: PolicySpec, tokenizer: PreTrainedTokenizerFast, rows: int, least: float = 0) -> None:
    """Refuses a tokenizer whose ids the embedding has no row for, or with less than a share of its rows."""
    sizes = f"its tokenizer has {len(tokenizer)} entries and its embedding {rows}"
    remedy = f"{sizes}, so put the model's own tokenizer into its folder"
    require(least * rows <= len(tokenizer) <= rows, "model.policy.model", spec.model, remedy)


def _check_sizes(sizes: Scratch) -> None:
    for key, value in asdict(sizes).items():
        require(value >= 1, f"model.policy.model.{key}", value, "give at least 1")
    multiple = 2 * sizes.num_attention_heads
    require(
        sizes.hidden_size % multiple == 0,
        "model.policy.model.hidden_size",
        sizes.hidden_size,
        f"rotary embeddings need heads of an even width, so give a multiple of {multiple} for "
        f"{sizes.num_attention_heads} heads",
    )


def _check_adapter(adapter: LoRA) -> None:
    key = "model.policy.adapter"
    require(adapter.rank >= 1, f"{key}.rank", adapter.rank, "give at least 1")
    require(adapter.alpha > 0, f"{key}.alpha", adapter.alpha, "give a number above 0, often twice the rank")
    require(0 <= adapter.dropout < 1, f"{key}.dropout", adapter.dropout, "give a number in [0, 1), usually 0")
    targets = adapter.target_modules
    require(bool(targets), f"{key}.target_modules", targets, 'name layers, or use "all-linear"')
    if adapter.dropout > 0:
        warnings.warn(
            f"{key}.dropout is {adapter.dropout}: the log-probabilities of an update then differ at random from those "
            "of the rollout, so 0 is recommended for reinforcement learning",
            stacklevel=3,
        )


def _check_files(model: str) -> None:
    folder = Path(location(model))
    if not folder.is_dir():
        config_file(model)  # of a model on the hub
        return

    def require_file(found: bool, name: str, remedy: str) -> None:
        require(found, "model.policy.model", model, f"the folder has no {name}, so {remedy}")

    require_file((folder / "config.json").is_file(), "config.json", "name one that save_pretrained has written")
    for name in _weight_files(model, folder):
        remedy = "save the weights there as safetensors, the only format supported"
        require_file((folder / name).is_file(), name, remedy)
        _check_is_whole(model, folder / name)
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZERS)
    require_file(has_tokenizer, "tokenizer.json", "save the tokenizer there")


def _weight_files(model: str, folder: Path) -> list[str]:
    if not (folder / _SHARDS).is_file():
        return [_WEIGHTS]
    try:
        return sorted(set(json.loads((folder / _SHARDS).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"model.policy.model is {model!r}: its {_SHARDS} is damaged, so write or copy it anew"
        ) from error


def _check_is_whole(model: str, file: Path) -> None:
    """Reads the header alone, whose sizes have to add up to the file's."""
    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        damage = f"its {file.name} is cut short or damaged ({error}), so write or copy it anew"
        raise ConfigError(f"model.policy.model is {model!r}: {damage}") from error


def _layers(config: PretrainedConfig) -> dict[str, nn.Module]:
    """The modules of the model by name, without weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    attention.install(model)
    return dict(model.named_modules())


def layers_without_adapter(model_type: str) -> frozenset[str]:
    """The layers to which peft gives no adapter, since fused kernels of Mamba would leave it out."""
    return _WITHOUT_ADAPTER if model_type in _MAMBA else frozenset()


def _check_target_modules(targets: list[str] | str, layers: dict[str, nn.Module], model_type: str) -> None:
    refused = sorted(layers_without_adapter(model_type).intersection(targets))
    remedy = f"peft puts no adapter on {refused} of a {model_type} model, so leave it out"
    require(not refused, "model.policy.adapter.target_modules", targets, remedy)
    adaptable = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear | nn.Embedding | Conv1D)}
    linear = {name.rsplit(".", 1)[-1] for name, layer in adaptable.items() if not isinstance(layer, nn.Embedding)}
    for target in targets:
        require(
            any(name == target or name.endswith(f".{target}") for name in adaptable),
            "model.policy.adapter.target_modules",
            targets,
            f"{target} is no layer of this {model_type} model that takes an adapter, so choose from "
            f'{", ".join(sorted(linear)) or "its layers"}, or use "all-linear"',
        )
