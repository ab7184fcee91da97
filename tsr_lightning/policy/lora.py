"""Puts LoRA adapters on a model. Imports peft, which takes two seconds, so import this only for a policy with one."""

import warnings

from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.tuners.lora import Linear as AdaptedLinear
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsr_lightning.modeling.linear_parts import Adapter, LinearParts, parts_of, register
from tsr_lightning.policy.checks import layers_without_adapter
from tsr_lightning.policy.spec import LoRA


def with_adapter(base: PreTrainedModel, adapter: LoRA) -> PeftModel:
    """The model with a new adapter, whose weights are drawn from torch's global generator."""
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=adapter.target_modules,
        exclude_modules=sorted(layers_without_adapter(base.config.model_type)) or None,
        lora_dropout=adapter.dropout,
    )
    with warnings.catch_warnings():  # peft adds patterns for experts in one tensor, to which it gives no adapter here
        warnings.simplefilter("ignore", FutureWarning)  # and asks for checkpointing by a name that transformers changed
        warnings.filterwarnings("ignore", r"The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        model = get_peft_model(base, config)
    assert isinstance(model, PeftModel)
    return model


def _read(layer: AdaptedLinear) -> LinearParts | None:
    """peft's layer; None where it does more than add the product of two matrices."""
    base = parts_of(layer.base_layer)
    if base is None or layer.merged:
        return None
    if layer.disable_adapters:
        return base
    [name] = layer.active_adapters
    if layer.lora_variant or not isinstance(layer.lora_dropout[name], nn.Identity):
        return None
    down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
    assert isinstance(down, Tensor)
    assert isinstance(up, Tensor)
    return LinearParts(base.weight, base.bias, Adapter(down, up, layer.scaling[name]))


register(AdaptedLinear, _read)
