"""A trained policy as files that plain transformers and peft play: safetensors, the tokenizer beside them."""

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

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.architecture import renamed
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import Scratch

_NAME = "default"  # peft's name of the only adapter
# tags, numbers, grids, blanks, accents, an ideogram: what rules for splitting a text differ in
_PROBE = "<think>Let's push 12 boxes</think><answer>Up || Down</answer>\n\n  ######\n#_P_O√ (3, 4) $10.00 É 你\t"


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
    if isinstance(model, PeftModel) and not merged:
        if isinstance(policy.spec.model, Scratch):
            raise ConfigError(
                "model.policy.adapter is a LoRA on a new model, whose base weights are in no file: export it merged "
                "instead"
            )
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(folder)
        return
    whole = _merged(policy.causal_lm) if isinstance(model, PeftModel) else policy.causal_lm
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _as_trained(tokenizer).save_pretrained(folder)
    if not _is_read_back(tokenizer, folder):
        _rename(whole, folder)


def _as_trained(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Responses end where they did in training, and no penalty or cut of a base model's changes what is sampled."""
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted(Chat(tokenizer).end_ids),
        pad_token_id=tokenizer.pad_token_id,
    )


def _is_read_back(tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> bool:
    """Whether AutoTokenizer makes the same tokens of a text as the tokenizer that was saved."""
    loaded = AutoTokenizer.from_pretrained(folder)
    return bool(loaded.encode(_PROBE, add_special_tokens=False) == tokenizer.encode(_PROBE, add_special_tokens=False))


def _rename(model: PreTrainedModel, folder: str | Path) -> None:
    """Writes another configuration of the same model, for which AutoTokenizer reads tokenizer.json as it is."""
    config = renamed(model.config)
    if config is None:
        warnings.warn(
            f"{folder}: AutoTokenizer rebuilds the tokenizer of a {model.config.model_type} model by rules of its own, "
            "which are not those it was trained with: load it with PreTrainedTokenizerFast.from_pretrained",
            stacklevel=3,
        )
    else:
        config.save_pretrained(folder)


@torch.no_grad()
def _merged(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model of the same function: every layer unquantised, every adapter added to its layer."""
    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    plain.load_state_dict({name: _dense(model, plain, name) for name in plain.state_dict()})
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
