"""A trained policy as files that plain transformers and peft play: safetensors, the tokenizer beside them."""

from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Params4bit
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import Scratch

_NAME = "default"  # peft's name of the only adapter


def export(policy: Policy, tokenizer: PreTrainedTokenizerFast, folder: str | Path, *, merged: bool = False) -> None:
    """Writes the policy to a folder.

    Args:
        policy: what was trained; it is left as it is.
        tokenizer: saved beside the weights.
        folder: made if it is not there.
        merged: a model that needs no peft, instead of the adapter alone: 4-bit weights are unpacked and the adapter
            added to them. A policy without an adapter is always written whole.
    """
    model = policy.model
    if not isinstance(model, PeftModel):
        model.save_pretrained(folder)
    elif merged:
        _merged(policy.causal_lm).save_pretrained(folder)
    elif isinstance(policy.spec.model, Scratch):
        raise ConfigError(
            "model.policy.adapter is a LoRA on a new model, whose base weights are in no file: export it merged instead"
        )
    else:
        model.save_pretrained(str(folder))
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def _merged(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model of the same function: every layer unquantised, every adapter added to its layer."""
    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    plain.load_state_dict({name: _dense(model, plain, name) for name in plain.state_dict()})
    plain.generation_config = model.generation_config
    return plain


def _dense(model: nn.Module, plain: nn.Module, name: str) -> Tensor:
    """A tensor of `plain`, from a model in which some layers are quantised and some carry an adapter."""
    owner, _, key = name.rpartition(".")
    module = model.get_submodule(owner)
    layer = module.get_base_layer() if isinstance(module, LoraLayer) else module
    tensor: Tensor = layer.state_dict(keep_vars=True)[key]
    quantised = isinstance(tensor, Params4bit)
    if isinstance(tensor, Params4bit):
        tensor = dequantize_4bit(tensor, tensor.quant_state)
    if isinstance(module, LoraLayer) and key == "weight":
        delta: Tensor = module.get_delta_weight(_NAME)  # type: ignore[operator]  # which peft's base class does not declare
        tensor = tensor.float() + delta.float()
    # quantising makes a linear layer of GPT-2's, which keep their weights the other way round
    return tensor.T if quantised and isinstance(plain.get_submodule(owner), Conv1D) else tensor
