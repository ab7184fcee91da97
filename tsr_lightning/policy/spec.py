"""Which model is trained, and how: what a YAML says of a policy, and all that can be known before weights are loaded.

Knows configurations and folders, and no weights.
"""

import hashlib
import json
import re
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from huggingface_hub import constants, try_to_load_from_cache
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file

from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import attention

EMBEDDED = Path(__file__).parent / "embedded"
_PREFIX = "embedded/"
_WEIGHTS = "model.safetensors"
_SHARDS = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
_UNLIMITED = 2**31 - 1  # positions that need no table, such as ALiBi's
# what a saved configuration says of the saving and not of the model
_CIRCUMSTANCES = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"})


@dataclass(frozen=True)
class Scratch:
    """A small Llama-style model with fresh weights, tied embeddings and a vocabulary of the environment's own text.

    Args:
        hidden_size: width of the residual stream.
        num_hidden_layers: number of transformer layers.
        num_attention_heads: attention heads of each layer; they divide the hidden size.
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
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685) through peft; the base weights stay as they are.

    Args:
        rank: rank of each update.
        alpha: an update counts alpha / rank.
        target_modules: names of the layers that get one, or "all-linear" for all but the output embedding.
        dropout: dropped share of an adapter's input; with any, the first update's ratio is not 1.
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
        compute_dtype: what the weights are unpacked to.
    """

    double_quant: bool = True
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"


@dataclass(frozen=True)
class PolicySpec:
    """A causal language model and how it is trained.

    Args:
        model: `embedded/sokoban`, `embedded/frozen_lake` or `embedded/webshop`, a folder, a name on the Hugging Face
            hub, or the sizes of a new small model.
        adapter: a LoRA adapter, or null to train all weights.
        quantisation: NF4 for base weights in 4 bits, or null.
        dtype: of the base weights that are not quantised; adapter and value head are float32 whatever this says.
        gradient_checkpointing: compute activations twice instead of keeping them.
    """

    model: str | Scratch
    adapter: LoRA | None = None
    quantisation: NF4 | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False


def location(model: str) -> str:
    """Where transformers finds a named model: a folder, or the name on the hub."""
    if not model.startswith(_PREFIX):
        return model
    folder = EMBEDDED / model.removeprefix(_PREFIX)
    if not (folder / "config.json").is_file():
        shipped = ", ".join(sorted(f"{_PREFIX}{path.parent.name}" for path in EMBEDDED.glob("*/config.json")))
        raise ConfigError(f"model.policy.model is {model}, which is not embedded: choose from {shipped or 'none'}")
    return str(folder)


def check(spec: PolicySpec) -> None:
    """All that can be wrong with a spec and seen before weights are loaded, each as one sentence."""
    if spec.quantisation and not spec.adapter:
        raise ConfigError(
            "model.policy.adapter is null while model.policy.quantisation is NF4: 4-bit weights cannot be trained, so "
            "give a LoRA adapter, or set quantisation to null"
        )
    if spec.adapter:
        _check_numbers(spec.adapter)
    if isinstance(spec.model, Scratch):
        _check_sizes(spec.model)
        if spec.quantisation:
            raise ConfigError("model.policy.quantisation is NF4 for a new model, which must learn all: set it to null")
        return
    _check_files(spec.model)
    config = _config(spec.model)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"model.policy.model is {spec.model}, of type {config.model_type}: name a causal language model instead"
        )
    layers = _layers(config)
    if spec.adapter and spec.adapter.target_modules != "all-linear":
        _check_targets(spec.adapter.target_modules, layers, config.model_type)


def context_length(spec: PolicySpec) -> int:
    """The most tokens that the model can see at once."""
    if isinstance(spec.model, Scratch):
        return spec.model.max_position_embeddings
    try:
        return int(_config(spec.model).get_text_config().max_position_embeddings)
    except AttributeError:
        return _UNLIMITED


def model_identity(spec: PolicySpec) -> dict[str, str | int | float]:
    """What a checkpoint must have in common with the model that it is loaded into, as plain values."""
    if isinstance(spec.model, Scratch):
        described: dict[str, Any] = asdict(spec.model)
    else:
        described = json.loads(_config_file(spec.model).read_text(encoding="utf-8"))
        described = {key: value for key, value in described.items() if key not in _CIRCUMSTANCES}
    text = json.dumps(described, sort_keys=True)
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


def _check_sizes(sizes: Scratch) -> None:
    for key, value in asdict(sizes).items():
        if value < 1:
            raise ConfigError(f"model.policy.model.{key} is {value}: give a number of at least 1")
    if sizes.hidden_size % (2 * sizes.num_attention_heads):
        raise ConfigError(
            f"model.policy.model.num_attention_heads is {sizes.num_attention_heads} with a hidden_size of "
            f"{sizes.hidden_size}: rotary embeddings need heads of an even width, so make the hidden size a multiple "
            f"of {2 * sizes.num_attention_heads}"
        )


def _check_numbers(adapter: LoRA) -> None:
    if adapter.rank < 1:
        raise ConfigError(f"model.policy.adapter.rank is {adapter.rank}: give a rank of at least 1")
    if adapter.alpha <= 0:
        raise ConfigError(f"model.policy.adapter.alpha is {adapter.alpha}: give a number above 0, often twice the rank")
    if not 0 <= adapter.dropout < 1:
        raise ConfigError(
            f"model.policy.adapter.dropout is {adapter.dropout}: give a share in [0, 1), 0 for reinforcement"
        )
    if not adapter.target_modules:
        raise ConfigError('model.policy.adapter.target_modules is empty: name layers, or say "all-linear"')
    if adapter.dropout > 0:
        warnings.warn(
            f"model.policy.adapter.dropout is {adapter.dropout}: the log-probabilities of an update then differ from "
            "those of the rollout by chance; 0 is meant for reinforcement learning",
            stacklevel=3,
        )


def _check_files(model: str) -> None:
    folder = Path(location(model))
    if not folder.is_dir():
        _config_file(model)  # a name on the hub: its configuration must be within reach
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model.policy.model is {model}, a folder without config.json: name one that save_pretrained wrote"
        )
    needed = {_WEIGHTS}
    if (folder / _SHARDS).is_file():
        needed = set(json.loads((folder / _SHARDS).read_text(encoding="utf-8"))["weight_map"].values())
    missing = sorted(name for name in needed if not (folder / name).is_file())
    if missing:
        raise ConfigError(
            f"model.policy.model is {model}, a folder without {missing[0]}: put the weights there as safetensors, the "
            "only format that is read"
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(f"model.policy.model is {model}, a folder without tokenizer.json: save the tokenizer there")


def _layers(config: PretrainedConfig) -> dict[str, nn.Module]:
    """The modules of the model by name, without a weight."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    attention.install(model)
    return dict(model.named_modules())


def _check_targets(targets: list[str] | str, layers: dict[str, nn.Module], kind: str) -> None:
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            linear = {name.rsplit(".", 1)[-1] for name, layer in layers.items() if isinstance(layer, nn.Linear)}
            raise ConfigError(
                f"model.policy.adapter.target_modules names {target}, which is no layer of this {kind} model: "
                f'choose from {", ".join(sorted(linear)) or "its layers"}, or say "all-linear"'
            )


def _config(model: str) -> PretrainedConfig:
    path = _config_file(model)
    try:
        return AutoConfig.from_pretrained(path.parent)
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(
            f"model.policy.model is {model}, whose config.json transformers cannot read: {str(error).splitlines()[0]}"
        ) from error


def _config_file(model: str) -> Path:
    folder = Path(location(model))
    if folder.is_dir():
        return folder / "config.json"
    cached = try_to_load_from_cache(model, "config.json") if _REPOSITORY.fullmatch(model) else None
    if isinstance(cached, str):
        return Path(cached)
    try:
        found = cached_file(model, "config.json") if _REPOSITORY.fullmatch(model) and _hub_answers() else None
    except (OSError, ValueError):
        found = None
    if found is None:
        raise ConfigError(
            f"model.policy.model is {model}, which is neither a folder here nor a model that the Hugging Face hub or "
            "its local cache gives: check the spelling, download it first, or take embedded/sokoban"
        )
    return Path(found)


def _hub_answers() -> bool:
    """Asked once and briefly: the hub's own client tries for half a minute before it says so."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5):
            return True
    except HTTPError:
        return True  # it answers, if only to decline
    except OSError:
        return False
