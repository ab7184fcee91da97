"""Merges an adapter into its model. Imports peft and bitsandbytes, which take two seconds."""

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Params4bit
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

_ADAPTER = "default"  # peft's name of the only adapter


@torch.no_grad()
def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model of the same function, with every layer dequantised and every adapter added to its layer. Tied
    embeddings of which one has an adapter are no longer tied."""
    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if any(isinstance(layer, LoraLayer) for layer in ends):  # one side's update is not the other's
        config.get_text_config().tie_word_embeddings = config.tie_word_embeddings = False
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
