"""Exports a trained policy as files that plain transformers and peft load: safetensors and the tokenizer."""

import warnings
from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Params4bit
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from tsr_lightning.errors import require
from tsr_lightning.policy.architecture import as_seed_oss
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import Scratch

_ADAPTER = "default"  # peft's name of the only adapter
# tags, numbers, grids, white space, accents, an ideogram: where rules for splitting text differ
_PROBE = "<think>Let's push 12 boxes</think><answer>Up || Down</answer>\n\n  ######\n#_P_O√ (3, 4) $10.00 É 你\t"


def export(policy: Policy, tokenizer: PreTrainedTokenizerFast, folder: str | Path, *, merged: bool = False) -> None:
    """Writes the policy to a folder.

    Args:
        policy: is not changed.
        tokenizer: saved with the weights.
        folder: created if it does not exist.
        merged: write a whole model that needs no peft, with 4-bit weights dequantised and the adapter added, instead of
            the adapter alone. A policy without an adapter is always written whole.
    """
    model = policy.model
    if isinstance(model, PeftModel) and not merged:
        remedy = "the base is a new model, whose weights are in no file, so export it merged"
        require(not isinstance(policy.spec.model, Scratch), "model.policy.adapter", policy.spec.adapter, remedy)
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(folder)
        return
    whole = _merge(policy.causal_lm) if isinstance(model, PeftModel) else policy.causal_lm
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _generation_config(tokenizer).save_pretrained(folder)
    if not _reloads_unchanged(tokenizer, folder):
        _save_as_seed_oss(whole, folder)


def _generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Ends responses as in training, without the penalties and cut-offs of the base model's own configuration."""
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted(Chat(tokenizer).end_ids),
        pad_token_id=tokenizer.pad_token_id,
    )


def _reloads_unchanged(tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> bool:
    """Whether AutoTokenizer tokenises as the tokenizer that was saved."""
    loaded = AutoTokenizer.from_pretrained(folder)
    return bool(loaded.encode(_PROBE, add_special_tokens=False) == tokenizer.encode(_PROBE, add_special_tokens=False))


def _save_as_seed_oss(model: PreTrainedModel, folder: str | Path) -> None:
    """Writes a configuration of the same model for which AutoTokenizer reads tokenizer.json unchanged."""
    config = as_seed_oss(model.config)
    if config is None:
        warnings.warn(
            f"{folder}: AutoTokenizer changes the tokenizer of a {model.config.model_type} model, so load it with "
            "PreTrainedTokenizerFast.from_pretrained",
            stacklevel=3,
        )
    else:
        config.save_pretrained(folder)


@torch.no_grad()
def _merge(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model of the same function, with every layer dequantised and every adapter added to its layer."""
    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    plain.load_state_dict({name: _dense(model, plain, name) for name in plain.state_dict()})
    return plain


def _dense(model: nn.Module, plain: nn.Module, name: str) -> Tensor:
    """The tensor `name` of `plain`, from a model whose layers may be quantised or have adapters."""
    owner, _, key = name.rpartition(".")
    module = model.get_submodule(owner)
    layer = module.get_base_layer() if isinstance(module, LoraLayer) else module
    tensor: Tensor = layer.state_dict(keep_vars=True)[key]
    quantised = isinstance(tensor, Params4bit)
    if isinstance(tensor, Params4bit):
        tensor = dequantize_4bit(tensor, tensor.quant_state)
    if isinstance(module, LoraLayer) and key == "weight":
        delta: Tensor = module.get_delta_weight(_ADAPTER)  # type: ignore[operator]  # peft's base class does not declare it
        tensor = tensor.float() + delta.float()
    # quantisation turns GPT-2's Conv1D layers, whose weights are transposed, into linear layers
    return tensor.T if quantised and isinstance(plain.get_submodule(owner), Conv1D) else tensor
